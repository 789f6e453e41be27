//! One watcher (L20): first what was missed, then what happens, and a snapshot whenever the one
//! cannot be joined to the other.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use futures_util::stream;
use lease::{Error, Event, EventKind, Notice, Revision, Watch};
use tokio::sync::broadcast::{Receiver, error::RecvError};

use super::{
    Inner,
    feed::{self, News},
};

/// How many missed events are read at a time.
const STEP: usize = 1000;
/// The pause after a failed look at the history; the stream goes on when the store is back.
const AGAIN: Duration = Duration::from_millis(200);

struct Watcher {
    inner: Arc<Inner>,
    live: Receiver<News>,
    /// The last revision that was passed on.
    at: Revision,
    ready: VecDeque<Notice>,
    /// Something may have been missed.
    look: bool,
}

/// Starts a stream after `from`, or from now on.
pub(super) async fn start(inner: &Arc<Inner>, from: Option<Revision>) -> Result<Watch, Error> {
    let feed = inner.feed.get_or_try_init(|| feed::start(inner)).await?;
    // Listening comes first, so that nothing falls between the history and the stream.
    let live = feed.subscribe();
    let bounds = inner.history(u64::MAX, 0).await?;
    let mut watcher = Watcher {
        inner: inner.clone(),
        live,
        at: from.unwrap_or(Revision::new(bounds.newest)),
        ready: VecDeque::new(),
        look: false,
    };
    if from.is_some() {
        watcher.catch_up().await?;
    }
    Ok(Box::pin(stream::unfold(watcher, async |mut watcher| {
        let notice = watcher.next().await?;
        Some((Ok(notice), watcher))
    })))
}

impl Watcher {
    async fn next(&mut self) -> Option<Notice> {
        loop {
            if let Some(notice) = self.ready.pop_front() {
                return Some(notice);
            }
            if self.look {
                match self.catch_up().await {
                    Ok(()) => continue,
                    Err(error) => {
                        tracing::debug!(%error, "a watcher waits for the store");
                        tokio::time::sleep(AGAIN).await;
                        continue;
                    }
                }
            }
            match self.live.recv().await {
                Ok(News::Events(events)) => {
                    for event in events.iter() {
                        self.see(event);
                    }
                }
                Ok(News::Look) | Err(RecvError::Lagged(_)) => self.look = true,
                Err(RecvError::Closed) => return None,
            }
        }
    }

    fn see(&mut self, event: &Event) {
        if self.look {
            // The history has it, in its place.
            return;
        }
        if event.revision == self.at.next() {
            self.at = event.revision;
        } else if event.revision > self.at {
            self.look = true;
            return;
        } else if event.kind != EventKind::LeaseRenewed || event.revision < self.at {
            // Known already; a renewal that is not kept has the revision it came after.
            return;
        }
        self.ready.push_back(Notice::Event(event.clone()));
    }

    /// Reads what the history has after the last revision, or takes a snapshot when it has not all.
    async fn catch_up(&mut self) -> Result<(), Error> {
        let stretch = self.inner.history(self.at.get(), STEP).await?;
        if stretch.lacks(self.at) {
            let snapshot = self.inner.snapshot().await?;
            self.at = snapshot.revision;
            self.look = true;
            self.ready.push_back(Notice::Snapshot(Box::new(snapshot)));
            return Ok(());
        }
        self.look = stretch.entries.len() == STEP;
        for entry in stretch.entries {
            self.at = entry.event.revision;
            self.ready.push_back(Notice::Event(entry.event));
        }
        if self.at == Revision::ZERO {
            self.at = Revision::new(stretch.base);
        }
        Ok(())
    }
}
