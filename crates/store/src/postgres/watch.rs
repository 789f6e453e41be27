//! PostgreSQL as watchers see it.

use std::sync::Arc;

use lease::{Error, EventQuery, Revision, Watching};
use tokio_util::sync::CancellationToken;

use super::{feed::Feed, read::Reader};
use crate::live::{Joined, Source, Stretch};

/// What a watch needs of this replica.
#[derive(Clone)]
pub(super) struct Watched {
    pub reader: Reader,
    pub feed: Arc<Feed>,
    pub closed: CancellationToken,
}

impl Source for Watched {
    const WAITS: bool = true;

    async fn join(&self, watching: &Arc<Watching>, snapshot: bool) -> Result<Joined, Error> {
        let live = self.feed.live(&self.reader, &self.closed).await?;
        // Listening comes first, so that nothing falls between what is read here and the stream.
        let (live_from, events) = live.join(watching.clone());
        let (newest, snapshot) = if snapshot {
            let mut snapshot = self.reader.snapshot().await?;
            watching.narrow(&mut snapshot);
            (snapshot.revision, Some(Box::new(snapshot)))
        } else {
            (self.reader.newest().await?, None)
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
        let page = self.reader.events(&query).await?;
        Ok(Stretch {
            lacks: after.next() < page.oldest || after > page.newest,
            more: page.more,
            events: page.events,
        })
    }
}
