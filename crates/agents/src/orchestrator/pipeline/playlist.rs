//! Reading what a pipeline wrote.

use std::{path::Path, time::SystemTime};

/// The playlist's file name, in every session's folder.
pub(super) const NAME: &str = "index.m3u8";

/// Whether the playlist is there and its first segment is not empty.
pub(super) async fn is_playable(dir: &Path) -> bool {
    let Ok(text) = tokio::fs::read_to_string(dir.join(NAME)).await else {
        return false;
    };
    let Some(segment) = first_segment(&text) else {
        return false;
    };
    tokio::fs::metadata(dir.join(segment))
        .await
        .is_ok_and(|file| file.len() > 0)
}

/// Changes whenever the playlist does: its length and when it was written.
pub(super) type Fingerprint = (u64, SystemTime);

/// The playlist's fingerprint, if it is there.
pub(super) async fn fingerprint(dir: &Path) -> Option<Fingerprint> {
    let file = tokio::fs::metadata(dir.join(NAME)).await.ok()?;
    Some((file.len(), file.modified().ok()?))
}

fn first_segment(playlist: &str) -> Option<&str> {
    playlist
        .lines()
        .map(str::trim)
        .find(|line| !line.is_empty() && !line.starts_with('#'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn playable_only_with_a_first_segment_that_is_not_empty() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!is_playable(dir.path()).await);
        let playlist = "#EXTM3U\n#EXTINF:2.0,\nseg00000.ts\n";
        std::fs::write(dir.path().join(NAME), playlist).unwrap();
        assert!(!is_playable(dir.path()).await);
        std::fs::write(dir.path().join("seg00000.ts"), "").unwrap();
        assert!(!is_playable(dir.path()).await);
        std::fs::write(dir.path().join("seg00000.ts"), "x").unwrap();
        assert!(is_playable(dir.path()).await);
    }
}
