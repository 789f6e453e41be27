//! The folders of streams: one per session, with a note of the process that it belongs to. Several
//! workers may write below one root, also workers of different stores, which know nothing of each
//! other's sessions: whoever tidies up goes by the note.

use std::{io, path::Path, time::Duration};

use tokio::fs;

use super::alive::{self, Mark};

/// The note. Its name keeps it from being served.
const OWNER: &str = ".owner";
/// What a folder is called until its note is written.
const DRAFT: &str = "draft";
/// A stream writes every few seconds: after so long without a change it has no process, wherever that
/// was.
const QUIET: Duration = Duration::from_secs(3600);
/// A folder gets its note right after it was made: one that has none for so long lost its process in between.
const QUIET_DRAFT: Duration = Duration::from_secs(10);

/// Makes a session's folder. It is never seen without its note.
pub(super) async fn create(dir: &Path, owner: &Mark) -> io::Result<()> {
    let draft = dir.with_extension(DRAFT);
    fs::create_dir_all(&draft).await?;
    fs::write(draft.join(OWNER), owner.note()).await?;
    match fs::rename(&draft, dir).await {
        // From an earlier attempt of the same session.
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
            fs::rename(draft.join(OWNER), dir.join(OWNER)).await?;
            fs::remove_dir(&draft).await
        }
        outcome => outcome,
    }
}

/// The session of a folder, if it is one.
pub(super) fn session_of(folder: &Path) -> Option<uuid::Uuid> {
    let name = folder.file_name()?.to_str()?;
    let name = name
        .strip_suffix(DRAFT)
        .and_then(|name| name.strip_suffix('.'))
        .unwrap_or(name);
    uuid::Uuid::parse_str(name).ok()
}

/// Removes a session's folder, and its draft: a task that is cancelled while it makes the folder leaves that.
pub(super) async fn remove(dir: &Path) {
    remove_one(dir).await;
    remove_one(&dir.with_extension(DRAFT)).await;
}

/// Removes a folder or a draft. One that is not there is fine; one that resists is tried again by the next
/// scan.
pub(super) async fn remove_one(dir: &Path) {
    match fs::remove_dir_all(dir).await {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(dir = %dir.display(), %error, "cannot remove a session's output");
        }
        _ => {}
    }
}

/// Whether nobody works on a folder: it belongs to a process that is gone, or to this one, which has no
/// such session.
pub(super) async fn is_abandoned(dir: &Path, own: &Mark) -> bool {
    let note = fs::read_to_string(dir.join(OWNER)).await.ok();
    if note.as_deref() == Some(&*own.note()) {
        return true;
    }
    match note.as_deref().and_then(alive::lives_by_note) {
        Some(lives) => !lives,
        None => is_quiet(dir).await.unwrap_or(false),
    }
}

async fn is_quiet(dir: &Path) -> Option<bool> {
    let changed = fs::metadata(dir).await.ok()?.modified().ok()?;
    let is_draft = dir.extension().is_some_and(|it| it == DRAFT);
    let limit = if is_draft { QUIET_DRAFT } else { QUIET };
    Some(changed.elapsed().ok()? > limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_folders_of_sessions_are_touched() {
        let id = uuid::Uuid::from_u128(7);
        for name in [format!("/x/{id}"), format!("/x/{id}.draft")] {
            assert_eq!(session_of(Path::new(&name)), Some(id), "{name}");
        }
        for name in ["/x/children", "/x/.draft", "/x/draft", "/"] {
            assert_eq!(session_of(Path::new(name)), None, "{name}");
        }
    }

    #[tokio::test]
    async fn a_folder_is_abandoned_when_nobody_works_on_it() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join(uuid::Uuid::from_u128(7).to_string());
        let own = Mark::set(&leasehold_client::new_incarnation());
        let other = Mark::set(&leasehold_client::new_incarnation());
        create(&dir, &other).await.unwrap();
        create(&dir, &other).await.unwrap();
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 1);
        assert!(!is_abandoned(&dir, &own).await);
        assert!(is_abandoned(&dir, &other).await, "it has no such session");
        drop(other);
        assert!(is_abandoned(&dir, &own).await);
        // Nothing is known about whoever made one without a note: it is left alone for now.
        std::fs::remove_file(dir.join(OWNER)).unwrap();
        assert!(!is_abandoned(&dir, &own).await);
        std::fs::create_dir(dir.with_extension(DRAFT)).unwrap();
        remove(&dir).await;
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_draft_without_a_note_is_abandoned_after_a_moment() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join(uuid::Uuid::from_u128(7).to_string());
        let draft = dir.with_extension(DRAFT);
        let own = Mark::set(&leasehold_client::new_incarnation());
        for folder in [&dir, &draft] {
            std::fs::create_dir(folder).unwrap();
        }
        assert!(!is_abandoned(&draft, &own).await);
        for folder in [&dir, &draft] {
            let folder = std::fs::File::open(folder).unwrap();
            let made = folder.metadata().unwrap().modified().unwrap();
            folder.set_modified(made - 2 * QUIET_DRAFT).unwrap();
        }
        assert!(!is_abandoned(&dir, &own).await);
        assert!(is_abandoned(&draft, &own).await);
    }
}
