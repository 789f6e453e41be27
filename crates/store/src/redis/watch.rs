//! Redis as watchers see it.

use std::sync::Arc;

use lease::{Error, Revision, Watching};

use super::{Inner, feed};
use crate::live::{Joined, Live, Source, Stretch};

impl Source for Arc<Inner> {
    const WAITS: bool = true;

    async fn join(&self, watching: &Arc<Watching>, snapshot: bool) -> Result<Joined, Error> {
        let live = self.live().await?;
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

impl Inner {
    /// The live changes of this replica, begun by the first who asks. A task of its own begins them: a
    /// caller that is dropped half-way must not leave a listener behind, and one that is no longer
    /// polled must not keep the others waiting.
    async fn live(self: &Arc<Self>) -> Result<Live, Error> {
        if let Some(live) = self.feed.get() {
            return Ok(live.clone());
        }
        let inner = self.clone();
        let beginning = self.runtime.spawn(async move {
            let live = inner.feed.get_or_try_init(|| feed::start(&inner)).await;
            live.cloned()
        });
        beginning
            .await
            .unwrap_or_else(|_| Err(Error::Unavailable("the store is closing".into())))
    }
}
