//! Resuming after a stop or a crash (L14).

use std::sync::Arc;

use super::{
    Effects, Engine, Idle, Options,
    slots::{Ended, Extra, Grant, NONE, State},
};
use crate::{
    Event, EventKind, Key, Labels, Lease, LeaseId, LeaseRef, Record, Revision, Status, Terms,
    Token, UnixMillis,
    planted::{Bug, planted},
};

/// One key as a store keeps it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredSlot {
    /// The key.
    pub key: Key,
    /// Its newest token.
    pub token: Token,
    /// Its live lease.
    pub lease: Option<Lease>,
    /// How its newest lease ended, when there is no live one.
    pub ended: Option<Ended>,
    /// From when on the lease has what is left of it: absent where that is its grant or its last renewal. Time
    /// that stood still since then is in its expiry, and not in what is left.
    pub counted_from: Option<UnixMillis>,
}

impl StoredSlot {
    /// That of a key which is forgotten.
    pub fn nothing(key: Key) -> Self {
        Self {
            key,
            token: Token::ZERO,
            lease: None,
            ended: None,
            counted_from: None,
        }
    }

    /// The authority crashed: takes out of the lease's expiry what time stood still before, so that the lease
    /// gets what it can have had left, and not that too.
    pub fn crashed(&mut self) {
        if let (Some(lease), Some(from)) = (&mut self.lease, self.counted_from.take()) {
            let known = lease.renewed_at.unwrap_or_default().max(lease.acquired_at);
            let left = lease.expires_at.since(from);
            lease.expires_at = known.plus(left);
        }
    }
}

/// An engine on its way back from what a store kept.
pub struct Restoring {
    engine: Engine,
    labels: Labels,
}

impl Restoring {
    /// Begins, at this revision and with this floor.
    pub fn new(options: Options, revision: Revision, floor: Token) -> Self {
        let mut engine = Engine::new(options);
        engine.revision = revision;
        engine.floor = floor;
        Self {
            engine,
            labels: Labels::default(),
        }
    }

    /// Takes in what was kept about a key, in the place of what was taken in before. One that never had a token
    /// has nothing to keep.
    pub fn put(&mut self, mut slot: StoredSlot) {
        if let Some(lease) = &mut slot.lease {
            // Neighbours often have the same labels, and then share them, as they did when they were granted together.
            if lease.labels == self.labels {
                lease.labels = self.labels.clone();
            }
            self.labels = lease.labels.clone();
        }
        self.engine.put(slot);
    }

    /// The engine, with these records.
    pub fn done(self, records: impl IntoIterator<Item = Record>) -> Engine {
        let mut engine = self.engine;
        for record in records {
            engine
                .records
                .insert(record.key, (record.value, record.revision));
        }
        let mut idle: Vec<Idle> = engine
            .slots
            .iter()
            .filter_map(|(slot, it)| match &it.state {
                State::Idle { ended, .. } => Some(Idle {
                    slot,
                    generation: it.generation,
                    since: ended
                        .as_ref()
                        .map_or_else(UnixMillis::default, |ended| ended.at),
                }),
                State::Live(_) => None,
            })
            .collect();
        idle.sort_by_key(|idle| idle.since);
        engine.idle = idle.into();
        engine
    }
}

/// How the authority went down, which says how much its leases have left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resume {
    /// Gracefully at this time, with every renewal written down: leases get the time they had left.
    AfterStop(UnixMillis),
    /// The last renewals are not known: leases get their full ttl.
    AfterCrash,
}

impl Engine {
    /// Builds an engine from what a store kept.
    pub fn restore(
        options: Options,
        revision: Revision,
        floor: Token,
        slots: impl IntoIterator<Item = StoredSlot>,
        records: impl IntoIterator<Item = Record>,
    ) -> Self {
        let mut restoring = Restoring::new(options, revision, floor);
        for slot in slots {
            restoring.put(slot);
        }
        restoring.done(records)
    }

    fn put(&mut self, stored: StoredSlot) {
        self.resumed_at = self.resumed_at.max(stored.counted_from.unwrap_or_default());
        let slot = self.slots.find_or_insert(&stored.key);
        self.vacate(slot);
        if stored.token == Token::ZERO {
            self.slots.remove(slot);
            return;
        }
        let Some(lease) = stored.lease.filter(|lease| lease.status == Status::Active) else {
            self.slots.get_mut(slot).state = State::Idle {
                last: stored.token,
                ended: stored.ended,
            };
            return;
        };
        let extra = (lease.stats.is_some() || lease.handoff.is_some()).then(|| {
            Box::new(Extra {
                stats: lease.stats.clone(),
                handoff: lease.handoff.clone(),
            })
        });
        self.slots.get_mut(slot).state = State::Live(Grant {
            id: lease.id,
            token: lease.token,
            acquired_at: lease.acquired_at,
            expires_at: lease.expires_at,
            renewed_at: lease.renewed_at.unwrap_or_default(),
            ttl: lease.ttl,
            on_outage: lease.on_outage,
            holder: 0,
            previous: NONE,
            next: NONE,
            release_on_death: lease.release_on_death,
            labels: lease.labels.clone(),
            extra,
        });
        self.holders.link(&mut self.slots, slot, &lease.holder);
        self.slots.index_id(lease.id, slot);
        self.timers.arm(&self.slots, slot);
    }

    /// Time stopped with the authority: gives every lease back what it had left, or its full ttl, and
    /// records that in an event. Leases may get longer, never shorter. Tokens already issued stay
    /// behind the clock even if it was set back in the meantime.
    pub fn resume(&mut self, now: UnixMillis, resume: Resume, effects: &mut Effects) {
        self.now = self.now.max(now);
        let now = self.now;
        self.resumed_at = now;
        let slots: Vec<_> = self.slots.iter().map(|(index, _)| index).collect();
        let (mut leases, mut longest) = (0_u64, 0);
        for slot in slots {
            let Some(grant) = self.slots.get_mut(slot).grant_mut() else {
                continue;
            };
            let before = grant.expires_at;
            grant.expires_at = match resume {
                Resume::AfterStop(stopped) => before.plus(now.since(stopped)),
                Resume::AfterCrash if planted(Bug::CrashShortens) => before,
                Resume::AfterCrash => before.max(now.plus(longest_left(grant))),
            };
            if let Some(handoff) = grant
                .extra
                .as_mut()
                .and_then(|extra| extra.handoff.as_mut())
            {
                handoff.until = handoff.until.plus(grant.expires_at.since(before));
            }
            leases += 1;
            longest = longest.max(grant.expires_at.since(before));
        }
        self.timers.clear();
        self.lapsed.clear();
        let live: Vec<_> = self
            .slots
            .iter()
            .filter(|(_, slot)| slot.grant().is_some())
            .map(|(index, _)| index)
            .collect();
        for slot in live {
            self.timers.arm(&self.slots, slot);
        }
        if leases > 0 {
            let after = match resume {
                Resume::AfterStop(_) => "stop",
                Resume::AfterCrash => "crash",
            };
            let detail: Arc<str> = format!(
                r#"{{"after":"{after}","leases":{leases},"lengthened_ms_at_most":{longest}}}"#
            )
            .into();
            let revision = self.next_revision();
            effects.events.push(Event {
                revision,
                at: now,
                kind: EventKind::AuthorityResumed,
                key: Key::new("authority", "embedded").expect("a fixed key is well formed"),
                lease: None,
                cause: None,
                detail: Some(detail),
            });
        }
    }

    /// What a store must keep about a key; `None` when it is forgotten or was never used.
    pub fn stored(&self, key: &Key) -> Option<StoredSlot> {
        let it = self.slots.get(self.slots.find(key)?);
        let (lease, ended) = match &it.state {
            State::Live(grant) => (
                Some(grant.to_lease(&it.key, self.holders.get(grant.holder), Status::Active)),
                None,
            ),
            State::Idle { ended, .. } => (None, ended.clone()),
        };
        let resumed = it
            .grant()
            .is_some_and(|grant| grant.known() < self.resumed_at);
        // A key that was only ever waited for has nothing to keep.
        (it.last_token() != Token::ZERO).then(|| StoredSlot {
            key: it.key.clone(),
            token: it.last_token(),
            lease,
            ended,
            counted_from: resumed.then_some(self.resumed_at),
        })
    }

    /// What an event does not say about this lease, when there is nothing else to say about its key: it is still
    /// live, and no handoff is under way.
    pub fn terms(&self, key: &Key, id: LeaseId) -> Option<Terms> {
        let grant = self.slots.get(self.slots.find(key)?).grant()?;
        (grant.id == id && grant.handoff().is_none()).then(|| grant.terms())
    }

    /// Whether this lease is as it was granted: nobody renewed it, or got it again.
    pub fn is_as_granted(&self, lease: &LeaseRef) -> bool {
        let slot = self.slots.find(&lease.key);
        let grant = slot.and_then(|slot| self.slots.get(slot).grant());
        grant.is_some_and(|grant| {
            grant.token == lease.token && grant.renewed_at == UnixMillis::default()
        })
    }

    /// Every live lease, in no order: for an orderly stop, which writes down the renewals.
    pub fn live(&self) -> impl Iterator<Item = Lease> + '_ {
        self.slots.iter().filter_map(|(_, slot)| {
            let grant = slot.grant()?;
            Some(grant.to_lease(&slot.key, self.holders.get(grant.holder), Status::Active))
        })
    }
}

/// The most that a lease can have had left when the authority crashed: its ttl, or what its last
/// renewal that is known left it, which is more when that one shortened the ttl (L8).
fn longest_left(grant: &Grant) -> u64 {
    let left = grant.expires_at.since(grant.known());
    grant.ttl.millis().max(left)
}
