//! What this instance owns, and which polls are running. Never locked over I/O.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lease::{BootMillis, Clock, LeaseRef, Standing, Token, UnixMillis};
use leasehold_client::keeper::{Guard, State};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::plan::{Holdings, Mine};

/// One owned target.
pub(super) struct Owned {
    pub guard: Guard,
    /// No new poll starts: a hand-over is about to be committed.
    pub draining: bool,
    /// A hand-over is under way.
    pub moving: bool,
    /// When a renewal failed that has not succeeded since.
    pub uncertain_since: Option<UnixMillis>,
    /// Asked for by the program, not found by discovery.
    pub by_hand: bool,
    /// The last renewal that was logged.
    pub logged_renewal: Option<UnixMillis>,
}

impl Owned {
    /// Since when it is uncertain: since now, unless it was already.
    pub fn uncertain(&mut self, now: UnixMillis) -> UnixMillis {
        *self.uncertain_since.get_or_insert(now)
    }
}

#[derive(Default)]
struct Inner {
    owned: BTreeMap<String, Owned>,
    /// Polls that run now, by target. They outlive an ownership that was lost meanwhile.
    running: HashSet<String>,
    stopping: bool,
}

/// The table, shared by all that poll.
pub(super) struct Table {
    inner: Mutex<Inner>,
    clock: Arc<dyn Clock>,
    /// Counts changes of what is owned, for those who follow it.
    changes: watch::Sender<u64>,
    /// Counts polls that ended, for those who wait for one.
    ends: watch::Sender<u64>,
    /// Cancelled when a stop can wait no longer for running polls.
    break_off: CancellationToken,
}

impl Table {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            inner: Mutex::default(),
            clock,
            changes: watch::Sender::new(0),
            ends: watch::Sender::new(0),
            break_off: CancellationToken::new(),
        }
    }

    /// Poisoning is no concern: every critical section leaves a whole value behind.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Keeps a new ownership; gives it back when the instance is stopping.
    pub fn insert(&self, target: &str, guard: Guard, by_hand: bool) -> bool {
        let mut inner = self.lock();
        if inner.stopping {
            drop(inner);
            drop(guard);
            return false;
        }
        let owned = Owned {
            guard,
            draining: false,
            moving: false,
            uncertain_since: None,
            by_hand,
            logged_renewal: None,
        };
        let before = inner.owned.insert(target.to_owned(), owned);
        drop(inner);
        // Outside of the lock: dropping a guard talks to its keeper.
        drop(before);
        self.changed();
        true
    }

    /// Takes an ownership out, whatever its token, or only that token's.
    pub fn remove(&self, target: &str, token: Option<Token>) -> Option<Owned> {
        let mut inner = self.lock();
        let owned = inner.owned.get(target)?;
        if token.is_some_and(|token| token != owned.guard.token()) {
            return None;
        }
        let removed = inner.owned.remove(target);
        drop(inner);
        self.changed();
        removed
    }

    /// A comparison with the deadline (L10). False while a hand-over drains.
    pub fn is_owned(&self, target: &str) -> bool {
        self.with(target, |owned| !owned.draining && owned.guard.is_owned())
            .unwrap_or(false)
    }

    pub fn with<T>(&self, target: &str, look: impl FnOnce(&mut Owned) -> T) -> Option<T> {
        self.lock().owned.get_mut(target).map(look)
    }

    /// What is owned at this moment, in order.
    pub fn owned(&self) -> Vec<String> {
        let inner = self.lock();
        let live = inner
            .owned
            .iter()
            .filter(|(_, owned)| !owned.draining && owned.guard.is_owned());
        live.map(|(target, _)| target.clone()).collect()
    }

    /// Ownerships that were renewed since this was asked last, with their tokens.
    pub fn newly_renewed(&self) -> Vec<(String, Token)> {
        let mut renewed = Vec::new();
        for (target, owned) in &mut self.lock().owned {
            let at = owned.guard.lease().renewed_at;
            if at.is_some() && at != owned.logged_renewal {
                owned.logged_renewal = at;
                renewed.push((target.clone(), owned.guard.token()));
            }
        }
        renewed
    }

    pub fn reference(&self, target: &str) -> Option<LeaseRef> {
        self.with(target, |owned| LeaseRef::from(&owned.guard.lease()))
    }

    /// Whether a hand-over of the target could begin.
    pub fn begin_move(&self, target: &str) -> bool {
        self.with(target, |owned| !std::mem::replace(&mut owned.moving, true))
            .unwrap_or(false)
    }

    /// The hand-over came to nothing: polls go on.
    pub fn end_move(&self, target: &str) {
        self.with(target, |owned| {
            owned.moving = false;
            owned.draining = false;
        });
        self.changed();
    }

    /// From now on no poll of the target starts.
    pub fn drain(&self, target: &str) -> bool {
        let found = self.with(target, |owned| owned.draining = true).is_some();
        self.changed();
        found
    }

    /// From now on no poll at all starts. False when that was so before.
    pub fn stop(&self) -> bool {
        let before = std::mem::replace(&mut self.lock().stopping, true);
        self.changed();
        !before
    }

    /// Running polls are to end now.
    pub fn break_off(&self) {
        self.break_off.cancel();
    }

    pub fn is_stopping(&self) -> bool {
        self.lock().stopping
    }

    /// Whether a poll of the target runs.
    pub fn is_running(&self, target: &str) -> bool {
        self.lock().running.contains(target)
    }

    /// Resolves when no poll of the target runs.
    pub async fn idle(&self, target: &str) {
        let mut ends = self.ends.subscribe();
        loop {
            let busy = self.lock().running.contains(target);
            // The sender lives in this very table.
            if !busy || ends.changed().await.is_err() {
                return;
            }
        }
    }

    /// A permit to poll now: the target is owned for certain, nothing drains, and no other poll of it
    /// runs.
    pub fn permit(self: &Arc<Self>, target: &str) -> Option<PollPermit> {
        let mut inner = self.lock();
        if inner.stopping || inner.running.contains(target) {
            return None;
        }
        let owned = inner.owned.get(target)?;
        let states = owned.guard.watch();
        let certain = *states.borrow() == State::Owned;
        if owned.draining || !certain || owned.guard.standing() != Standing::Owned {
            return None;
        }
        let permit = PollPermit {
            token: owned.guard.token(),
            deadline: owned.guard.deadline(),
            target: target.to_owned(),
            states,
            table: self.clone(),
        };
        inner.running.insert(target.to_owned());
        Some(permit)
    }
}

/// A permit for one poll. While it exists the target is not handed over; it must be dropped before its
/// deadline.
#[must_use = "a poll runs while its permit exists"]
pub struct PollPermit {
    token: Token,
    deadline: BootMillis,
    target: String,
    states: watch::Receiver<State>,
    table: Arc<Table>,
}

impl PollPermit {
    /// The fencing token: goes along with the poll and with its result.
    pub fn token(&self) -> Token {
        self.token
    }

    /// The target.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// Until when the ownership is trusted: the poll must have ended by then.
    pub fn deadline(&self) -> BootMillis {
        self.deadline
    }

    /// How long the ownership is trusted if no renewal succeeds from here on: the poll must have
    /// ended by then.
    pub fn left(&self) -> Duration {
        Duration::from_millis(self.deadline.since(self.table.clock.boot()))
    }

    /// Whether this very ownership still stands: a comparison with the deadline.
    pub fn is_current(&self) -> bool {
        self.table
            .with(&self.target, |owned| {
                owned.guard.token() == self.token && owned.guard.is_owned()
            })
            .unwrap_or(false)
    }

    /// Resolves when the ownership is over, or when this instance stops and can wait no longer, so
    /// that a running poll can be broken off.
    pub async fn lost(&self) {
        let mut states = self.states.clone();
        tokio::select! {
            // An error means that nobody keeps the lease any more.
            _ = states.wait_for(|state| matches!(state, State::Over(_))) => {}
            () = self.table.break_off.cancelled() => {}
        }
    }
}

impl Holdings for Table {
    fn mine(&self, target: &str) -> Option<Mine> {
        self.with(target, |owned| Mine {
            moving: owned.moving,
            by_hand: owned.by_hand,
        })
    }

    /// Also what just lapsed or drains.
    fn all(&self) -> Vec<String> {
        self.lock().owned.keys().cloned().collect()
    }

    fn count(&self) -> usize {
        self.lock().owned.len()
    }
}

impl Drop for PollPermit {
    fn drop(&mut self) {
        self.table.lock().running.remove(&self.target);
        self.table.ends.send_modify(|count| *count += 1);
    }
}
