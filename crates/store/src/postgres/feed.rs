//! What is new: wakes watchers when the history grows, and carries the renewals made here.

use std::sync::atomic::{AtomicUsize, Ordering};

use lease::{Event, EventKind, EventLease, Lease, Revision, UnixMillis};
use tokio::sync::{broadcast, watch};

/// How many renewals a slow watcher may lag behind before it gets a snapshot instead.
const RENEWALS: usize = 4096;

/// Shared by the writer, the listener and all watchers of this replica.
pub(super) struct Feed {
    newest: watch::Sender<u64>,
    renewals: broadcast::Sender<Event>,
    watchers: AtomicUsize,
}

impl Feed {
    pub fn new() -> Self {
        Self {
            newest: watch::Sender::new(0),
            renewals: broadcast::Sender::new(RENEWALS),
            watchers: AtomicUsize::new(0),
        }
    }

    /// Whether anybody watches here.
    pub fn is_watched(&self) -> bool {
        self.watchers.load(Ordering::Relaxed) > 0
    }

    /// The history has come to `revision`, as far as this replica knows.
    pub fn reached(&self, revision: Revision) {
        self.newest.send_if_modified(|newest| {
            let grew = revision.get() > *newest;
            *newest = (*newest).max(revision.get());
            grew
        });
    }

    /// Somebody says that there is more to read.
    pub fn look(&self) {
        self.newest.send_modify(|_| ());
    }

    /// Leases were renewed here. Tells whoever watches here; the history does not keep it.
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
                detail: None,
            });
        }
    }

    /// Joins as a watcher; leave with [`Feed::leave`].
    pub fn join(&self) -> (watch::Receiver<u64>, broadcast::Receiver<Event>) {
        self.watchers.fetch_add(1, Ordering::Relaxed);
        (self.newest.subscribe(), self.renewals.subscribe())
    }

    pub fn leave(&self) {
        self.watchers.fetch_sub(1, Ordering::Relaxed);
    }
}
