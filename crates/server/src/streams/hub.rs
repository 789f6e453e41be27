//! One watch over the authority for the whole server: it notifies each connected holder of what it lost,
//! and counts what happens.

use std::{
    collections::{HashMap, hash_map},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use futures_util::future::OptionFuture;
use lease::{
    Authority, BootMillis, Clock, Event, EventKind, Identity, Key, Lease, LeaseQuery, Loss, Status,
    Token, Watching,
};
use leasehold_api::stream::{Down, Lost};
use leasehold_client::{Change, Follower, pages::Pages};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{metrics::Metrics, observe::Observer};

/// How many messages may wait for one holder's stream. A holder that lost more at a time is notified to
/// renew everything.
const QUEUE: usize = 256;
/// The pauses before the watch is opened again: a holder that waits for a loss waits for this.
const RETRY_MS: (u64, u64) = (100, 1_000);
/// How many live leases are counted at start; beyond that the metric is a lower bound.
const MAX_COUNTED: usize = 100_000;

/// What a holder gives back over its connection, and how many calls for it are under way or have done it:
/// until the event comes.
type Releasing = HashMap<(Key, Token), usize>;

struct Entry {
    connection: u64,
    outlet: Outlet,
    replaced: CancellationToken,
    releasing: Releasing,
}

/// The way to one holder's stream.
#[derive(Clone)]
struct Outlet {
    /// Boxed: the queue keeps room for many, and most streams never have one.
    down: mpsc::Sender<Box<Down>>,
    /// Set when a message found the queue full: the connection then says that some were missed.
    missed: Arc<AtomicBool>,
}

#[derive(Default)]
struct Connected {
    last: u64,
    by_holder: HashMap<Identity, Entry>,
}

/// The holders that are connected. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Hub {
    // A plain mutex: held for a look-up, never over an await.
    connected: Arc<Mutex<Connected>>,
}

/// One holder's place in the hub.
pub(crate) struct Connection {
    pub messages: mpsc::Receiver<Box<Down>>,
    /// Cancelled when a newer connection of the same holder took over.
    pub replaced: CancellationToken,
    missed: Arc<AtomicBool>,
    holder: Identity,
    number: u64,
    hub: Hub,
}

/// What a holder gives back over its connection. It learns that from the answer: notified as well, it
/// would be sent everything twice.
pub(crate) struct Releases {
    hub: Hub,
    holder: Identity,
    number: u64,
}

impl Releases {
    /// This lease is being given back.
    pub fn begin(&self, key: &Key, token: Token) {
        self.with(|releasing| *releasing.entry((key.clone(), token)).or_default() += 1);
    }

    /// It was not by this call, or nobody knows: should it end, the holder is to be notified.
    pub fn failed(&self, key: &Key, token: Token) {
        self.with(|releasing| {
            let calls = releasing
                .entry((key.clone(), token))
                .and_modify(|calls| *calls -= 1);
            if let hash_map::Entry::Occupied(calls) = calls
                && *calls.get() == 0
            {
                calls.remove();
            }
        });
    }

    fn with(&self, change: impl FnOnce(&mut Releasing)) {
        let mut connected = self.hub.connected();
        let entry = connected.by_holder.get_mut(&self.holder);
        if let Some(entry) = entry.filter(|entry| entry.connection == self.number) {
            change(&mut entry.releasing);
        }
    }
}

impl Hub {
    /// Connects a holder. An earlier connection of the same holder is closed.
    pub fn connect(&self, holder: Identity) -> Connection {
        let (down, messages) = mpsc::channel(QUEUE);
        let replaced = CancellationToken::new();
        let missed = Arc::new(AtomicBool::new(false));
        let mut connected = self.connected();
        connected.last += 1;
        let number = connected.last;
        let entry = Entry {
            connection: number,
            outlet: Outlet {
                down,
                missed: missed.clone(),
            },
            replaced: replaced.clone(),
            releasing: Releasing::new(),
        };
        if let Some(earlier) = connected.by_holder.insert(holder.clone(), entry) {
            earlier.replaced.cancel();
        }
        Connection {
            messages,
            replaced,
            missed,
            holder,
            number,
            hub: self.clone(),
        }
    }

    /// Watches until the server stops. `begun` is cancelled once the first watch is open, or could not
    /// be opened.
    pub async fn run(
        self,
        authority: Arc<dyn Authority>,
        clock: Arc<dyn Clock>,
        metrics: Metrics,
        closing: CancellationToken,
        begun: CancellationToken,
    ) {
        let mut follower = Follower::new(authority.clone(), clock.clone(), Watching::default())
            .with_pauses(RETRY_MS.0, RETRY_MS.1);
        let mut observer = Observer::new(metrics.clone());
        loop {
            let settles = observer.settles_at();
            let settled = OptionFuture::from(settles.map(|at| reached(&*clock, at)));
            let change = tokio::select! {
                // Tokens and timers are looked at when nothing comes, or when it is another task's turn.
                biased;
                change = follower.next() => change,
                () = closing.cancelled() => return,
                _ = settled, if settles.is_some() => {
                    observer.settle();
                    continue;
                }
            };
            match change {
                Ok(Change::Event(event)) => {
                    observer.event(&event, clock.boot());
                    self.notify(&event);
                }
                Ok(Change::Resync(snapshot)) => {
                    // Holders that are already connected may have lost something unnoticed.
                    self.notify_all(&Down::Missed);
                    observer.resynced();
                    match snapshot {
                        Some(snapshot) => {
                            metrics.set_live_leases(snapshot.leases.iter().map(|it| &it.key));
                        }
                        None => count(&*authority, &metrics).await,
                    }
                    begun.cancel();
                }
                Ok(Change::Progress(_)) => {}
                Ok(Change::Interrupted(error)) => {
                    observer.interrupted(&error);
                    begun.cancel();
                }
                Err(error) => {
                    tracing::error!(%error, "the store cannot be watched");
                    begun.cancel();
                    return;
                }
            }
        }
    }

    /// Lets a connected holder know that its lease is gone: that of its tenant, and one that is bound
    /// to none and may see all.
    fn notify(&self, event: &Event) {
        let Some(lease) = event.lease.as_ref().filter(|_| event.kind.ends_lease()) else {
            return;
        };
        let own = lease.identity();
        let unbound = Identity::new(None, lease.holder.clone());
        let mut connected = self.connected();
        let also = (own != unbound).then_some(&unbound);
        for identity in [Some(&own), also].into_iter().flatten() {
            let Some(entry) = connected.by_holder.get_mut(identity) else {
                continue;
            };
            let asked = !entry.releasing.is_empty()
                && entry
                    .releasing
                    .remove(&(event.key.clone(), lease.token))
                    .is_some();
            if asked && event.kind == EventKind::LeaseReleased && event.cause.is_none() {
                continue;
            }
            entry.outlet.send(Down::Lost(Lost {
                key: event.key.clone(),
                token: lease.token,
                loss: Loss::of(event).unwrap_or(Loss::Unknown),
                revision: event.revision,
            }));
        }
    }

    fn notify_all(&self, message: &Down) {
        for entry in self.connected().by_holder.values_mut() {
            // The events that these wait for may be among what was missed.
            entry.releasing.clear();
            entry.outlet.send(message.clone());
        }
    }

    fn connected(&self) -> std::sync::MutexGuard<'_, Connected> {
        self.connected
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Outlet {
    fn send(&self, message: Down) {
        if let Err(mpsc::error::TrySendError::Full(_)) = self.down.try_send(Box::new(message)) {
            self.missed.store(true, Ordering::Release);
        }
    }
}

/// Makes no timer before it is first polled, which is never as long as changes come.
async fn reached(clock: &dyn Clock, at: BootMillis) {
    clock.sleep_until(at).await;
}

/// Counted after the watch began. A change in between may be counted twice, never lost.
async fn count(authority: &dyn Authority, metrics: &Metrics) {
    let query = LeaseQuery {
        status: Some(Status::Active),
        ..LeaseQuery::default()
    };
    let counted = |lease: Lease| Some(lease.key);
    match Pages::new(authority, query)
        .select(MAX_COUNTED, counted)
        .await
    {
        Ok(keys) => metrics.set_live_leases(keys.iter()),
        Err(error) => tracing::info!(%error, "live leases could not be counted"),
    }
}

impl Connection {
    /// What is given back over this connection is noted with this.
    pub fn releases(&self) -> Releases {
        Releases {
            hub: self.hub.clone(),
            holder: self.holder.clone(),
            number: self.number,
        }
    }

    /// Whether messages were lost since the last call because the queue was full.
    pub fn missed(&self) -> bool {
        self.missed.swap(false, Ordering::AcqRel)
    }

    /// Whether this is still the holder's newest connection.
    pub fn is_newest(&self) -> bool {
        self.hub
            .connected()
            .by_holder
            .get(&self.holder)
            .is_some_and(|entry| entry.connection == self.number)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut connected = self.hub.connected();
        if connected
            .by_holder
            .get(&self.holder)
            .is_some_and(|entry| entry.connection == self.number)
        {
            connected.by_holder.remove(&self.holder);
        }
    }
}
