//! An engine, and a simple picture of it that is drawn from its events alone.

use std::collections::{BTreeMap, BTreeSet};

use lease::{
    Acquire, Acquired, Command, Departure, Engine, Event, EventKind, Grace, HandoffStep, Holder,
    Key, Lease, LeaseQuery, LeaseRef, OnOutage, Renew, Renewal, Renewals, Revoke, Status, Token,
    Transaction, Ttl, UnixMillis, Want, Watching, Write,
    engine::{Decision, Effects, Options, Resume, StoredSlot, Ticket},
    history::{Extent, Verifier},
};

use super::moves::{KEYS, Move};

/// The engine and what is known about it from outside.
pub struct World {
    options: Options,
    engine: Engine,
    effects: Effects,
    now: UnixMillis,
    history: Vec<Event>,
    /// Every grant, oldest first.
    grants: Vec<Lease>,
    /// The live leases by what the events reported.
    live: BTreeMap<Key, Token>,
    /// The live leases as they were after the last move.
    before: BTreeMap<Key, Lease>,
    waiting: BTreeSet<Ticket>,
    /// Everything that was reported, for comparison.
    pub transcript: Vec<String>,
}

impl World {
    pub fn new(options: Options) -> Self {
        Self {
            engine: Engine::new(options.clone()),
            options,
            effects: Effects::default(),
            now: UnixMillis::new(1_000_000),
            history: Vec::new(),
            grants: Vec::new(),
            live: BTreeMap::new(),
            before: BTreeMap::new(),
            waiting: BTreeSet::new(),
            transcript: Vec::new(),
        }
    }

    fn key(key: u8) -> Key {
        Key::new("key", &(key % KEYS).to_string()).unwrap()
    }

    fn keys() -> impl Iterator<Item = Key> {
        (0..KEYS).map(Self::key)
    }

    fn holder(holder: u8) -> Holder {
        let name = ["ann", "bob", "cid"][usize::from(holder % 3)];
        Holder::new(name, if holder.is_multiple_of(2) { "1" } else { "2" }).unwrap()
    }

    /// One of the newest grants.
    fn grant(&self, pick: u8) -> Option<Lease> {
        let newest = self.grants.len().min(6);
        let place = self.grants.len() - newest + usize::from(pick) % newest.max(1);
        self.grants.get(place).cloned()
    }

    /// Plays a move; one that names what is not there does nothing.
    pub fn play(&mut self, step: &Move) {
        match step {
            Move::Pass { ms, tick } => {
                self.now = self.now.plus(*ms);
                if *tick {
                    self.change(|engine, now, effects| {
                        engine.tick(now, effects);
                        None
                    });
                }
            }
            Move::Restart(orderly) => self.restart(*orderly),
            Move::Abandon(pick) => {
                let place = usize::from(*pick) % self.waiting.len().max(1);
                if let Some(ticket) = self.waiting.iter().nth(place).copied() {
                    self.waiting.remove(&ticket);
                    self.change(|engine, now, effects| {
                        engine.abandon(now, ticket, effects);
                        None
                    });
                }
            }
            _ => {
                if let Some(command) = self.command(step) {
                    self.apply(command);
                }
            }
        }
    }

    fn command(&self, step: &Move) -> Option<Command> {
        Some(match step {
            Move::Acquire {
                keys,
                any,
                holder,
                ttl_ms,
                hold_ms,
                on_death,
                wait_ms,
                limit,
                force,
            } => {
                let keys = keys.iter().map(|&key| Self::key(key)).collect();
                let want = if *any {
                    Want::Any(keys)
                } else {
                    Want::All(keys)
                };
                let ttl = Ttl::from_millis(*ttl_ms).unwrap();
                Command::Acquire(Acquire {
                    on_outage: hold_ms.map_or(OnOutage::FailClosed, |grace| {
                        OnOutage::Hold(Grace::from_millis(grace).unwrap())
                    }),
                    release_on_death: *on_death,
                    wait_ms: *wait_ms,
                    limit: *limit,
                    force: force.then(|| "by force".into()),
                    ..Acquire::of(want, Self::holder(*holder), ttl)
                })
            }
            Move::Renew { lease, ttl_ms } => {
                let lease = self.grant(*lease)?;
                let renewal = Renewal {
                    ttl: ttl_ms.map(|ttl| Ttl::from_millis(ttl).unwrap()),
                    ..Renewal::of(&lease)
                };
                Command::Renew(Renew {
                    holder: lease.holder,
                    leases: Renewals::These(vec![renewal]),
                })
            }
            Move::RenewAll(holder) => Command::Renew(Renew {
                holder: Self::holder(*holder),
                leases: Renewals::All,
            }),
            Move::Release { lease, stranger } => {
                let mut lease = LeaseRef::from(&self.grant(*lease)?);
                if *stranger {
                    lease.holder = Holder::new("stranger", "1").unwrap();
                }
                Command::Release(lease)
            }
            Move::Revoke(lease) => Command::Revoke(Revoke {
                id: self.grant(*lease)?.id,
                reason: "an order".into(),
            }),
            Move::Depart { how, holder } => {
                let holder = Self::holder(*holder);
                Command::Depart(match how % 3 {
                    0 => Departure::Died(holder),
                    1 => Departure::Succeeded(holder),
                    _ => Departure::Left(holder),
                })
            }
            Move::Offer {
                lease,
                successor,
                ms,
            } => {
                let lease = LeaseRef::from(&self.grant(*lease)?);
                let successor = Self::holder(*successor);
                if successor == lease.holder {
                    return None;
                }
                Command::Handoff(HandoffStep::Offer {
                    lease,
                    successor,
                    prepare_ms: *ms,
                    drain_ms: *ms,
                    confirm_ms: *ms,
                })
            }
            Move::Prepare(key) => {
                let key = Self::key(*key);
                let open = self.engine.lease(self.now, &key)?.handoff?;
                let successor = open.successor;
                Command::Handoff(HandoffStep::Prepare { key, successor })
            }
            Move::HandOver(lease) => {
                let lease = LeaseRef::from(&self.grant(*lease)?);
                Command::Handoff(HandoffStep::Commit { lease, limit: None })
            }
            Move::Confirm(lease) => {
                let lease = LeaseRef::from(&self.grant(*lease)?);
                Command::Handoff(HandoffStep::Confirm { lease })
            }
            Move::Cancel(lease) => {
                let lease = self.grant(*lease)?;
                let (key, by) = (lease.key, lease.holder);
                Command::Handoff(HandoffStep::Cancel { key, by })
            }
            Move::Commit {
                record,
                put,
                key,
                release,
            } => Command::Commit(Transaction {
                writes: vec![Write {
                    key: Key::new("record", &(record % 3).to_string()).unwrap(),
                    value: put.then(|| record.to_string().into()),
                    note: None,
                }],
                acquire: Some(Acquire::one(
                    Self::key(*key),
                    Self::holder(*key),
                    Ttl::from_millis(300).unwrap(),
                )),
                release: self.grant(*release).iter().map(LeaseRef::from).collect(),
                ..Transaction::default()
            }),
            Move::Abandon(_) | Move::Pass { .. } | Move::Restart(_) => return None,
        })
    }

    fn apply(&mut self, command: Command) {
        self.change(|engine, now, effects| {
            let decision = engine.apply(now, command, effects);
            Some(decision.expect("moves are well formed"))
        });
    }

    fn change(
        &mut self,
        change: impl FnOnce(&mut Engine, UnixMillis, &mut Effects) -> Option<Decision>,
    ) {
        self.effects.clear();
        let decision = change(&mut self.engine, self.now, &mut self.effects);
        self.transcript
            .push(format!("{decision:?} {:?}", self.effects));
        if let Some(Decision::Waiting(ticket)) = decision {
            assert!(self.waiting.insert(ticket), "a ticket is used once");
        }
        self.take_in();
    }

    /// Reads the effects as a store would.
    fn take_in(&mut self) {
        for (ticket, answer) in &self.effects.woken {
            assert!(
                self.waiting.remove(ticket),
                "L6: only whoever waits is answered, and once: {answer:?}"
            );
            if let Acquired::Granted { leases, .. } = answer {
                for lease in leases {
                    assert_eq!(lease.status, Status::Active);
                }
            }
        }
        for event in &self.effects.events {
            self.history.push(event.clone());
            let Some(lease) = &event.lease else { continue };
            if event.kind == EventKind::LeaseAcquired {
                let before = self.live.insert(event.key.clone(), lease.token);
                assert_eq!(before, None, "L1: {} was not free", event.key);
                let granted = self.engine.live().find(|it| it.id == lease.id);
                self.grants.extend(granted);
            } else if event.kind.ends_lease() {
                let before = self.live.remove(&event.key);
                assert_eq!(before, Some(lease.token), "L19: it was live until now");
            }
        }
    }

    /// What a store keeps.
    pub fn stored(&self) -> Vec<StoredSlot> {
        Self::keys()
            .filter_map(|key| self.engine.stored(&key))
            .collect()
    }

    /// Builds the engine anew from what a store keeps.
    pub fn restore(&mut self) {
        let records = self.engine.snapshot(self.now, &Watching::default()).records;
        self.engine = Engine::restore(
            self.options.clone(),
            self.engine.revision(),
            self.engine.floor(),
            self.stored(),
            records,
        );
        self.waiting.clear();
    }

    fn restart(&mut self, orderly: bool) {
        let stopped = self.engine.now().max(self.now);
        let before: BTreeMap<Key, Lease> = self.by_key();
        self.restore();
        self.now = stopped.plus(5_000);
        let resume = if orderly {
            Resume::AfterStop(stopped)
        } else {
            Resume::AfterCrash
        };
        self.effects.clear();
        self.engine.resume(self.now, resume, &mut self.effects);
        self.take_in();
        for (key, lease) in self.by_key() {
            let old = &before[&key];
            assert_eq!((lease.id, lease.token), (old.id, old.token));
            let (left, had) = (
                lease.expires_at.since(self.now),
                old.expires_at.since(stopped),
            );
            assert!(left >= had, "L14: a restart never shortens a lease");
            if orderly {
                assert_eq!(left, had, "L14: after a stop, what it had left");
            }
        }
    }

    fn by_key(&self) -> BTreeMap<Key, Lease> {
        self.engine
            .live()
            .map(|lease| (lease.key.clone(), lease))
            .collect()
    }

    /// What must hold after every move.
    pub fn check(&mut self) {
        let now = self.now.max(self.engine.now());
        let live = self.by_key();
        let tokens: BTreeMap<_, _> = live
            .iter()
            .map(|(key, it)| (key.clone(), it.token))
            .collect();
        assert_eq!(tokens, self.live, "L19: the events tell all there is");
        assert_eq!(live.len(), self.engine.live_count());
        for (key, lease) in &live {
            assert!(lease.token <= Token::MAX);
            if let Some(before) = self.before.get(key)
                && before.id == lease.id
            {
                assert!(lease.expires_at >= before.expires_at, "L8: forward only");
                assert_eq!(lease.token, before.token, "L3: renewals keep the token");
            }
            let seen = self.engine.lease(now, key);
            assert_eq!(seen.is_some(), lease.is_live(now));
            let next = self.engine.next_tick().expect("something will lapse");
            assert!(
                next <= lease.lapses_at(),
                "L12: the next tick is never late"
            );
        }
        let pending = self.engine.leases(
            now,
            &LeaseQuery {
                status: Some(Status::Pending),
                limit: 1_000,
                ..LeaseQuery::default()
            },
        );
        for wait in &pending.items {
            let next = self.engine.next_tick().expect("a wait will end");
            assert!(next <= wait.expires_at, "L6: a wait ends on time");
        }
        assert_eq!(self.engine.waiting_count(), self.waiting.len());
        self.before = live;
    }

    /// The whole history, read once more: no two owners overlap, and tokens and revisions only grow.
    pub fn verify(&self) {
        let mut verifier = Verifier::new(Extent::After(lease::Revision::ZERO));
        for event in &self.history {
            verifier.see(event);
        }
        let (_, faults) = verifier.finish();
        assert!(faults.is_empty(), "L1, L3, L19: {faults:?}");
    }

    /// What happened to each key, when and under which token.
    pub fn stories(&self) -> BTreeMap<Key, Vec<(EventKind, UnixMillis, Option<Token>)>> {
        let mut stories: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for event in &self.history {
            let token = event.lease.as_ref().map(|lease| lease.token);
            stories
                .entry(event.key.clone())
                .or_default()
                .push((event.kind, event.at, token));
        }
        stories
    }
}
