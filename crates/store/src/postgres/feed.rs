//! The live changes of this replica: one reader of the history for all its watchers, woken when the
//! history grows, and the renewals made here.

use std::time::Duration;

use lease::{Error, Event, EventKind, EventLease, Lease, Revision, UnixMillis};
use tokio::{
    sync::{OnceCell, broadcast, watch},
    time::sleep,
};
use tokio_util::sync::CancellationToken;

use super::read::Reader;
use crate::live::Live;

/// How many events a watcher may be behind before it has to begin again.
const ROOM: usize = 8192;
/// How many renewals may wait for the reader of the history.
const RENEWALS: usize = 4096;
/// How many events are read in one query.
const PAGE: usize = 500;
/// How often the history is looked at when nobody reports that it grew.
const POLL: Duration = Duration::from_secs(1);

/// Shared by the writer, the listener and all watchers of this replica.
pub(super) struct Feed {
    newest: watch::Sender<u64>,
    renewals: broadcast::Sender<Event>,
    live: OnceCell<Live>,
}

impl Feed {
    pub fn new() -> Self {
        Self {
            newest: watch::Sender::new(0),
            renewals: broadcast::Sender::new(RENEWALS),
            live: OnceCell::new(),
        }
    }

    /// Whether anybody watches here.
    pub fn is_watched(&self) -> bool {
        self.live.get().is_some_and(Live::is_watched)
    }

    /// The history has come to `revision`, as far as this replica knows.
    pub fn reached(&self, revision: Revision) {
        self.newest.send_if_modified(|newest| {
            let grew = revision.get() > *newest;
            *newest = (*newest).max(revision.get());
            grew
        });
    }

    /// There is more to read.
    pub fn look(&self) {
        self.newest.send_modify(|_| ());
    }

    /// Leases were renewed here. For whoever watches here; the history does not keep it.
    pub fn renewed<'a>(
        &self,
        leases: impl IntoIterator<Item = &'a Lease>,
        at: UnixMillis,
        revision: Revision,
    ) {
        if !self.is_watched() {
            return;
        }
        for lease in leases {
            let _ = self.renewals.send(Event {
                revision,
                at,
                kind: EventKind::LeaseRenewed,
                key: lease.key.clone(),
                lease: Some(EventLease {
                    id: lease.id,
                    holder: lease.holder.clone(),
                    token: lease.token,
                    expires_at: lease.expires_at,
                    labels: lease.labels.clone(),
                }),
                cause: None,
                detail: None,
            });
        }
    }

    /// The live changes; begins to read them with the first watcher.
    pub async fn live(&self, reader: &Reader, closed: &CancellationToken) -> Result<&Live, Error> {
        let begin = async || {
            let (newest, renewals) = (self.newest.subscribe(), self.renewals.subscribe());
            let at = reader.newest().await?;
            let live = Live::new(ROOM, at);
            let mut follower = Follower {
                reader: reader.clone(),
                live: live.clone(),
                newest,
                renewals,
                at,
            };
            let closed = closed.clone();
            tokio::spawn(async move {
                closed.run_until_cancelled(follower.run()).await;
                follower.live.close();
            });
            Ok(live)
        };
        self.live.get_or_try_init(begin).await
    }
}

/// Reads the history once for everybody.
struct Follower {
    reader: Reader,
    live: Live,
    newest: watch::Receiver<u64>,
    renewals: broadcast::Receiver<Event>,
    at: Revision,
}

impl Follower {
    async fn run(&mut self) {
        loop {
            self.newest.mark_unchanged();
            self.catch_up().await;
            tokio::select! {
                changed = self.newest.changed() => if changed.is_err() {
                    return;
                },
                () = sleep(POLL) => {}
                renewal = self.renewals.recv() => match renewal {
                    Ok(event) => self.renewed(event).await,
                    Err(broadcast::error::RecvError::Lagged(_)) => {
                        self.live.begin_again_with_renewals();
                    }
                    Err(broadcast::error::RecvError::Closed) => return,
                },
            }
        }
    }

    /// Passes renewals on, each in its place among the other events.
    async fn renewed(&mut self, event: Event) {
        let mut next = Some(event);
        while let Some(event) = next {
            if self.at < event.revision {
                self.catch_up().await;
            }
            // Ahead of the history it would hide what comes between; the database cannot be read now.
            if event.revision <= self.at {
                self.live.publish([event]);
            }
            next = self.renewals.try_recv().ok();
        }
    }

    /// Hands out what the history has; when it has not all of it, everybody begins again.
    async fn catch_up(&mut self) {
        // When the database cannot be read it will be back, and nothing is lost meanwhile.
        while let Ok(page) = self.reader.page(self.at, PAGE).await {
            if self.at.next() < page.oldest || self.at > page.newest {
                self.at = page.newest;
                self.live.begin_again(self.at);
                return;
            }
            let more = page.more;
            if let Some(last) = page.events.last() {
                self.at = last.revision;
            }
            self.live.publish(page.events);
            if !more {
                return;
            }
        }
    }
}
