//! A tiny stream without a child: one short clip again and again, for machines without ffmpeg.

use std::{fmt::Write, io, path::PathBuf, sync::Arc};

use lease::Clock;
use tokio::{fs, sync::oneshot, task::JoinHandle};

use super::playlist;

/// What a player needs before the first clip.
const INIT: &[u8] = include_bytes!("../../../assets/virtual-init.mp4");
const INIT_NAME: &str = "init.mp4";
/// Two seconds of a test picture with a tone.
const CLIP: &[u8] = include_bytes!("../../../assets/virtual.m4s");
const CLIP_MS: u64 = 2_000;
/// How many segments the playlist shows.
const WINDOW: u64 = 5;

/// The stream at work.
pub(super) struct Generated {
    end: Option<oneshot::Sender<()>>,
    task: JoinHandle<io::Result<()>>,
    over: bool,
}

impl Generated {
    pub(super) fn start(dir: PathBuf, clock: Arc<dyn Clock>) -> Self {
        let (end, ended) = oneshot::channel();
        Self {
            end: Some(end),
            task: tokio::spawn(run(dir, clock, ended)),
            over: false,
        }
    }

    /// Resolves only when it cannot go on. Asked again afterwards, it says nothing more.
    pub(super) async fn failed(&mut self) -> io::Error {
        if self.over {
            return std::future::pending().await;
        }
        let outcome = (&mut self.task).await;
        self.over = true;
        match outcome {
            Ok(Err(error)) => error,
            Ok(Ok(())) => io::Error::other("the generated stream ended"),
            Err(error) => io::Error::other(error),
        }
    }

    pub(super) async fn stop(mut self) {
        drop(self.end.take());
        if !self.over {
            let _ = self.task.await;
        }
    }
}

async fn run(
    dir: PathBuf,
    clock: Arc<dyn Clock>,
    mut ended: oneshot::Receiver<()>,
) -> io::Result<()> {
    fs::write(dir.join(INIT_NAME), INIT).await?;
    let mut number = 0;
    loop {
        fs::write(dir.join(segment(number)), CLIP).await?;
        let first = number.saturating_sub(WINDOW - 1);
        // A reader never sees half a playlist.
        let draft = dir.join("index.tmp");
        fs::write(&draft, text(first, number)).await?;
        fs::rename(&draft, dir.join(playlist::NAME)).await?;
        if first > 0 {
            let _ = fs::remove_file(dir.join(segment(first - 1))).await;
        }
        number += 1;
        tokio::select! {
            () = clock.sleep_until(clock.boot().plus(CLIP_MS)) => {}
            _ = &mut ended => return Ok(()),
        }
    }
}

fn segment(number: u64) -> String {
    format!("seg{number:05}.m4s")
}

/// Every clip starts its timestamps anew, which a discontinuity announces to players.
fn text(first: u64, last: u64) -> String {
    let mut text = format!(
        "#EXTM3U\n#EXT-X-VERSION:7\n#EXT-X-TARGETDURATION:2\n#EXT-X-MEDIA-SEQUENCE:{first}\n\
         #EXT-X-DISCONTINUITY-SEQUENCE:{first}\n#EXT-X-MAP:URI=\"{INIT_NAME}\"\n"
    );
    for number in first..=last {
        let _ = write!(
            text,
            "#EXT-X-DISCONTINUITY\n#EXTINF:2.0,\n{}\n",
            segment(number)
        );
    }
    text
}
