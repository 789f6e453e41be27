//! The complete state of an authority, as a pure state machine.
//!
//! `apply(now, command)` decides, changes the state and returns what happened. Time comes in with each
//! call and never goes back; nothing else comes in from outside. A shell around it (the embedded
//! store) makes the events durable before it answers.

mod acquire;
mod end;
mod handoff;
mod holders;
mod records;
mod renew;
mod restore;
mod slots;
mod timers;
mod view;
mod waiters;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use holders::Holders;
use slots::{SlotIndex, Slots};
use timers::Timers;
use waiters::Waiters;

pub use restore::{Restoring, Resume, StoredSlot};
pub use slots::Ended;
pub use waiters::{MAX_WAITERS, Ticket};

use crate::{
    Acquired, Command, Event, EventCause, EventKind, EventLease, Invalid, Key, Outcome, Record,
    Revision, Terms, Token, UnixMillis, order,
    planted::{Bug, planted},
};

/// What became of a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decision {
    /// It was decided.
    Now(Outcome),
    /// The acquire waits; its answer comes later, in [`Effects::woken`].
    Waiting(Ticket),
}

impl From<Outcome> for Decision {
    fn from(outcome: Outcome) -> Self {
        Self::Now(outcome)
    }
}

/// What a command did, beside its outcome. Reused between calls to spare allocations.
#[derive(Default, Debug)]
pub struct Effects {
    /// The changes, in order. All but unkept renewals have a revision of their own.
    pub events: Vec<Event>,
    /// Waiters that got their answer.
    pub woken: Vec<(Ticket, Acquired)>,
    /// Keys whose lease changed in a way that must survive a crash although no kept event records it.
    pub touched: Vec<Key>,
    /// Keys whose last token was folded into [`Engine::floor`].
    pub forgotten: Vec<Key>,
    /// What the leases that ended had, by the revision of the event of their end.
    pub ended: Vec<(Revision, Terms)>,
}

impl Effects {
    /// Empties all lists and keeps their room.
    pub fn clear(&mut self) {
        self.events.clear();
        self.woken.clear();
        self.touched.clear();
        self.forgotten.clear();
        self.ended.clear();
    }
}

/// Which renewals become events.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RenewalEvents {
    /// None: cheapest, for benchmarks and bulk use.
    Off,
    /// On the live stream only.
    #[default]
    Live,
    /// In the history too, each with a revision.
    Kept,
}

/// Settings of an engine.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which renewals become events.
    pub renewals: RenewalEvents,
    /// How many keys without a lease are remembered one by one. Older ones are folded into one
    /// number, the floor of all new tokens, so that memory stays bounded and L3 still holds.
    pub idle_keys: usize,
    /// How long a key without a lease is remembered at most, in ms.
    pub idle_ms: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            renewals: RenewalEvents::default(),
            idle_keys: 100_000,
            idle_ms: 3_600_000,
        }
    }
}

/// How many leases one tick expires at most: watchers see the first of many while the others are
/// still being expired, and no request waits for all of them.
const EXPIRIES_PER_TICK: usize = 2_000;
/// How many of those that lapsed are put into order at the same time.
const LAPSED_PER_TICK: usize = 10_000;

struct Idle {
    slot: SlotIndex,
    generation: u32,
    since: UnixMillis,
}

/// The state machine. See the module's page.
pub struct Engine {
    options: Options,
    now: UnixMillis,
    /// When time began to run again for the leases that were live then.
    resumed_at: UnixMillis,
    revision: Revision,
    /// Every new token is larger than this: the largest token of the keys that were forgotten.
    floor: Token,
    slots: Slots,
    holders: Holders,
    timers: Timers,
    waiters: Waiters,
    idle: VecDeque<Idle>,
    /// What lapsed and is not expired yet, in the order in which it will be.
    lapsed: VecDeque<(SlotIndex, u32)>,
    records: BTreeMap<Key, (Arc<str>, Revision)>,
    /// Nobody wants events of renewals that are not kept.
    renewals_unwatched: bool,
}

impl Engine {
    /// An engine that knows nothing yet.
    pub fn new(options: Options) -> Self {
        Self {
            options,
            now: UnixMillis::default(),
            resumed_at: UnixMillis::default(),
            revision: Revision::ZERO,
            floor: Token::ZERO,
            slots: Slots::new(),
            holders: Holders::default(),
            timers: Timers::default(),
            waiters: Waiters::default(),
            idle: VecDeque::new(),
            lapsed: VecDeque::new(),
            records: BTreeMap::new(),
            renewals_unwatched: false,
        }
    }

    /// Whether somebody wants to see renewals. Without, none is made an event that is not kept anyway.
    pub fn watch_renewals(&mut self, watched: bool) {
        self.renewals_unwatched = !watched;
    }

    /// Decides one command. `effects` gets what happened, appended to what it holds.
    ///
    /// A wrong request changes nothing.
    pub fn apply(
        &mut self,
        now: UnixMillis,
        command: Command,
        effects: &mut Effects,
    ) -> Result<Decision, Invalid> {
        command.validate()?;
        self.now = self.now.max(now);
        let decision = match command {
            Command::Acquire(request) => self.acquire(request, effects),
            Command::Renew(request) => Outcome::Renewed(self.renew(&request, effects)).into(),
            Command::Keep(holder) => Outcome::Kept(self.keep(&holder, effects)).into(),
            Command::Release(lease) => Outcome::Released(self.release(&lease, "", effects)).into(),
            Command::Revoke(request) => Outcome::Revoked(self.revoke(&request, effects)).into(),
            Command::Depart(who) => Outcome::Departed(self.depart(&who, effects)).into(),
            Command::Handoff(step) => Outcome::Handoff(self.handoff(step, effects)).into(),
            Command::Commit(changes) => Outcome::Committed(self.commit(changes, effects)).into(),
        };
        // Only now: in the middle of a command the places of its keys are still in use.
        self.forget_idle(effects);
        Ok(decision)
    }

    /// A waiter went away.
    pub fn abandon(&mut self, now: UnixMillis, ticket: Ticket, effects: &mut Effects) {
        self.now = self.now.max(now);
        if !planted(Bug::AbandonedWaitServed) {
            self.leave(ticket);
        }
        self.forget_idle(effects);
    }

    /// Time passed: expires what lapsed, and ends waits that are over.
    pub fn tick(&mut self, now: UnixMillis, effects: &mut Effects) {
        self.now = self.now.max(now);
        self.expire_lapsed(effects);
        self.forget_idle(effects);
    }

    /// When the next [`Engine::tick`] is due. May be early, never late.
    pub fn next_tick(&self) -> Option<UnixMillis> {
        let lapsed = (!self.lapsed.is_empty()).then_some(self.now);
        [lapsed, self.timers.next(), self.waiters.next()]
            .into_iter()
            .flatten()
            .min()
    }

    /// When the first wait ends.
    pub fn next_deadline(&self) -> Option<UnixMillis> {
        self.waiters.next()
    }

    /// The latest time the engine was given.
    pub fn now(&self) -> UnixMillis {
        self.now
    }

    /// The revision of the last change.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Every new token is larger than this.
    pub fn floor(&self) -> Token {
        self.floor
    }

    fn expire_lapsed(&mut self, effects: &mut Effects) {
        if self.lapsed.is_empty() {
            self.line_up_lapsed();
        }
        for _ in 0..EXPIRIES_PER_TICK {
            let Some((slot, generation)) = self.lapsed.pop_front() else {
                break;
            };
            // A command may have been faster.
            let is_current = |it: &slots::Slot| it.generation == generation;
            if self.slots.try_get(slot).is_some_and(is_current) {
                self.settle(slot, effects);
            }
        }
        while let Some(ticket) = self.waiters.overdue(self.now) {
            self.conclude(ticket, effects);
        }
    }

    /// What lapsed first expires first, and at the same moment in the order of keys: an order that every
    /// store can keep.
    fn line_up_lapsed(&mut self) {
        let mut lapsed = Vec::new();
        while lapsed.len() < LAPSED_PER_TICK
            && let Some(slot) = self.timers.pop_lapsed(&self.slots, self.now)
        {
            lapsed.push(slot);
        }
        let slots = &self.slots;
        let lapse = |&slot: &SlotIndex| slots.get(slot).grant().map(slots::Grant::lapses_at);
        order::sort(&mut lapsed, lapse, |&slot| &slots.get(slot).key);
        let with_generation = |slot| (slot, slots.get(slot).generation);
        self.lapsed.extend(lapsed.into_iter().map(with_generation));
    }

    fn next_revision(&mut self) -> Revision {
        self.revision = self.revision.next();
        if planted(Bug::RevisionGap) && self.revision.get().is_multiple_of(5) {
            self.revision = self.revision.next();
        }
        self.revision
    }

    /// Emits an event about the live lease of `slot`.
    fn announce(
        &self,
        slot: SlotIndex,
        kind: EventKind,
        revision: Revision,
        why: Why,
        effects: &mut Effects,
    ) {
        let it = self.slots.get(slot);
        let Some(grant) = it.grant() else { return };
        effects.events.push(Event {
            revision,
            at: self.now,
            kind,
            key: it.key.clone(),
            lease: Some(EventLease {
                id: grant.id,
                holder: self.holders.get(grant.holder).clone(),
                token: grant.token,
                expires_at: grant.expires_at,
                labels: grant.labels.clone(),
            }),
            cause: why.cause,
            detail: why.words,
        });
    }
}

/// Why something happens to a lease: for programs, and in words for people.
#[derive(Default)]
struct Why {
    cause: Option<EventCause>,
    words: Option<Arc<str>>,
}

impl From<EventCause> for Why {
    fn from(cause: EventCause) -> Self {
        let cause = Some(cause);
        Self { cause, words: None }
    }
}

impl From<Option<Arc<str>>> for Why {
    fn from(words: Option<Arc<str>>) -> Self {
        Self { cause: None, words }
    }
}

/// The record as callers see it.
fn to_record(key: &Key, value: &Arc<str>, revision: Revision) -> Record {
    Record {
        key: key.clone(),
        value: value.clone(),
        revision,
    }
}
