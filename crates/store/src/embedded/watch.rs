//! The stream of changes (L20): first what was missed, then what happens, and a snapshot whenever the
//! one cannot be joined to the other.

use std::{collections::VecDeque, sync::Arc};

use futures_util::stream;
use lease::{Error, Event, EventQuery, Notice, Revision, Watch};
use tokio::sync::broadcast;

use super::{Embedded, history, job::Subscription, snapshot};

/// How many missed events are read at a time.
const PAGE: usize = 1_000;

/// Where a watcher is.
struct Watcher {
    store: Embedded,
    /// Missed events still to be read: after the first revision, up to and with the second.
    missed: Option<(Revision, Revision)>,
    ready: VecDeque<Notice>,
    /// The revision that the stream began at.
    since: Revision,
    live: broadcast::Receiver<Arc<Event>>,
}

/// Starts a stream after `from`, or from now on.
pub(super) async fn start(store: Embedded, from: Option<Revision>) -> Result<Watch, Error> {
    let subscription = store.subscribe().await?;
    let mut watcher = Watcher::new(store, subscription, from);
    // A revision that never was belongs to another history.
    if from.is_some_and(|from| from > watcher.since) {
        watcher.begin_again().await?;
    }
    Ok(Box::pin(stream::unfold(Some(watcher), next)))
}

async fn next(watcher: Option<Watcher>) -> Option<(Result<Notice, Error>, Option<Watcher>)> {
    let mut watcher = watcher?;
    match watcher.notice().await {
        Ok(Some(notice)) => Some((Ok(notice), Some(watcher))),
        Ok(None) => None,
        Err(error) => Some((Err(error), None)),
    }
}

impl Watcher {
    fn new(store: Embedded, subscription: Subscription, from: Option<Revision>) -> Self {
        Self {
            store,
            missed: from
                .filter(|&from| from < subscription.revision)
                .map(|from| (from, subscription.revision)),
            ready: VecDeque::new(),
            since: subscription.revision,
            live: subscription.events,
        }
    }

    /// The next notice; `None` when the authority has stopped.
    async fn notice(&mut self) -> Result<Option<Notice>, Error> {
        loop {
            if let Some(notice) = self.ready.pop_front() {
                return Ok(Some(notice));
            }
            if let Some((after, until)) = self.missed.take() {
                self.read_missed(after, until).await?;
                continue;
            }
            match self.live.recv().await {
                Ok(event) => return Ok(Some(Notice::Event((*event).clone()))),
                Err(broadcast::error::RecvError::Closed) => return Ok(None),
                // Too slow: what was overwritten is told as a snapshot, never left out.
                Err(broadcast::error::RecvError::Lagged(_)) => self.begin_again().await?,
            }
        }
    }

    async fn read_missed(&mut self, after: Revision, until: Revision) -> Result<(), Error> {
        let query = EventQuery {
            after,
            limit: PAGE,
            ..EventQuery::default()
        };
        let page = self
            .store
            .readers()
            .read(move |connection| history::events(connection, &query))
            .await?;
        if page.oldest > after.next() {
            return self.begin_again().await;
        }
        let reached = page.events.last().map_or(until, |event| event.revision);
        let missed = page.events.into_iter();
        self.ready.extend(
            missed
                .take_while(|event| event.revision <= until)
                .map(Notice::Event),
        );
        self.missed = (reached < until).then_some((reached, until));
        Ok(())
    }

    async fn begin_again(&mut self) -> Result<(), Error> {
        let (snapshot, subscription) = snapshot::take(&self.store).await?;
        *self = Self::new(self.store.clone(), subscription, None);
        self.ready.push_back(Notice::Snapshot(Box::new(snapshot)));
        Ok(())
    }
}
