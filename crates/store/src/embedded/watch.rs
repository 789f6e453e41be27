//! The embedded store as watchers see it: the writer hands out what it made durable, and readers of
//! their own read what was missed.

use std::sync::Arc;

use lease::{Error, EventQuery, Revision, Watching};

use super::{Embedded, history, snapshot};
use crate::live::{Joined, Source, Stretch};

impl Source for Embedded {
    // The store is in this process: what it cannot read now it cannot read later either.
    const WAITS: bool = false;

    async fn join(&self, watching: &Arc<Watching>, snapshot: bool) -> Result<Joined, Error> {
        // What one key or one holder has is looked up by the writer; more than that is read in pages
        // beside it.
        let narrow = watching.key.is_some() || watching.holder.is_some();
        if snapshot && !narrow {
            return snapshot::take(self, watching).await;
        }
        self.subscribe(watching.clone(), snapshot).await
    }

    async fn missed(
        &self,
        watching: &Watching,
        after: Revision,
        limit: usize,
    ) -> Result<Stretch, Error> {
        let query = EventQuery {
            after,
            key: watching.key.clone(),
            limit,
            ..EventQuery::default()
        };
        let known = self.shared.live.newest();
        let page = self
            .readers()
            .read(move |connection| history::events(connection, &query, known))
            .await?;
        Ok(Stretch {
            lacks: page.oldest > after.next(),
            more: page.more,
            events: page.events,
        })
    }
}
