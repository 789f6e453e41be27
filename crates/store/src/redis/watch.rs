//! Redis as watchers see it.

use std::sync::Arc;

use lease::{Error, Revision, Watching};

use super::{Inner, feed};
use crate::live::{Joined, Source, Stretch};

impl Source for Arc<Inner> {
    const WAITS: bool = true;

    async fn join(&self, watching: &Arc<Watching>, snapshot: bool) -> Result<Joined, Error> {
        let live = self.feed.get_or_try_init(|| feed::start(self)).await?;
        // Listening comes first, so that nothing falls between what is read here and the stream.
        let (live_from, events) = live.join(watching.clone());
        let (newest, snapshot) = if snapshot {
            let mut snapshot = self.snapshot().await?;
            watching.narrow(&mut snapshot);
            (snapshot.revision, Some(Box::new(snapshot)))
        } else {
            let bounds = self.history(u64::MAX, 0).await?;
            (Revision::new(bounds.newest), None)
        };
        Ok(Joined {
            live_from,
            newest,
            events,
            snapshot,
        })
    }

    async fn missed(
        &self,
        _watching: &Watching,
        after: Revision,
        limit: usize,
    ) -> Result<Stretch, Error> {
        let stretch = self.history(after.get(), limit).await?;
        Ok(Stretch {
            lacks: stretch.lacks(after),
            more: stretch.entries.len() == limit,
            events: stretch
                .entries
                .into_iter()
                .map(|entry| entry.event)
                .collect(),
        })
    }
}
