//! Which lease of the store is which lease of the oracle, and whether two answers say the same.
//!
//! Tokens, ids and revisions differ between two authorities; what must agree is which of them are
//! the same, and in which order they come.

use std::collections::HashMap;

use lease::{
    Acquired, Cause, Committed, Event, HandoffState, Key, Lease, Loss, Record, Refusal, Renewed,
    Revision, Token, Verdict,
};

/// What disagrees.
pub(super) type Differs = String;

/// The pairs of leases seen so far.
pub(super) struct Ledger {
    /// Whether times must agree to the millisecond.
    exact: bool,
    /// The oracle's lease and the store's.
    pub leases: Vec<(Lease, Lease)>,
    oracle: HashMap<(Key, Token), usize>,
    store: HashMap<(Key, Token), usize>,
    newest: HashMap<Key, Token>,
}

fn differ<T: std::fmt::Debug>(what: &str, oracle: T, store: T) -> Differs {
    format!("{what}: the engine says {oracle:?}, the store says {store:?}")
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, oracle: T, store: T) -> Result<(), Differs> {
    if oracle == store {
        Ok(())
    } else {
        Err(differ(what, oracle, store))
    }
}

/// Compares two lists item by item.
pub(super) fn each<T: std::fmt::Debug>(
    what: &str,
    oracle: &[T],
    store: &[T],
    mut compare: impl FnMut(&T, &T) -> Result<(), Differs>,
) -> Result<(), Differs> {
    if oracle.len() != store.len() {
        return Err(differ(what, oracle, store));
    }
    for (oracle, store) in oracle.iter().zip(store) {
        compare(oracle, store)?;
    }
    Ok(())
}

fn json(text: Option<&str>) -> Option<serde_json::Value> {
    text.and_then(|text| serde_json::from_str(text).ok())
}

impl Ledger {
    pub fn new(exact: bool) -> Self {
        Self {
            exact,
            leases: Vec::new(),
            oracle: HashMap::new(),
            store: HashMap::new(),
            newest: HashMap::new(),
        }
    }

    /// The same grant on both sides; a new one must have a larger token than its key ever had.
    fn token(&self, key: &Key, oracle: Token, store: Token) -> Result<(), Differs> {
        if self.exact {
            // Both start without a past, at the same moment (L3).
            return same(&format!("token of {key}"), oracle, store);
        }
        let known = (
            self.oracle.get(&(key.clone(), oracle)),
            self.store.get(&(key.clone(), store)),
        );
        if known.0 == known.1 && known.0.is_some() {
            return Ok(());
        }
        Err(differ(&format!("token of {key}"), oracle, store))
    }

    pub fn lease(&mut self, oracle: &Lease, store: &Lease) -> Result<(), Differs> {
        same("key", &oracle.key, &store.key)?;
        let names = (
            (oracle.key.clone(), oracle.token),
            (store.key.clone(), store.token),
        );
        if !self.oracle.contains_key(&names.0) && !self.store.contains_key(&names.1) {
            let newest = self
                .newest
                .insert(store.key.clone(), store.token)
                .unwrap_or(Token::ZERO);
            if store.token <= newest {
                return Err(format!("{}: token went back to {}", store.key, store.token));
            }
            self.oracle.insert(names.0, self.leases.len());
            self.store.insert(names.1, self.leases.len());
            self.leases.push((oracle.clone(), store.clone()));
        }
        self.token(&oracle.key, oracle.token, store.token)?;
        let index = self.oracle[&(oracle.key.clone(), oracle.token)];
        same("lease id", self.leases[index].1.id, store.id)?;
        let facts = |lease: &Lease| {
            (
                lease.holder.clone(),
                lease.ttl,
                lease.on_outage,
                lease.release_on_death,
                lease.status,
                lease.labels.clone(),
                json(lease.stats.as_deref()),
                lease.renewed_at.is_some(),
            )
        };
        same("lease", facts(oracle), facts(store))?;
        let times = |lease: &Lease| {
            let until = lease.handoff.as_ref().map(|handoff| handoff.until);
            (lease.acquired_at, lease.expires_at, lease.renewed_at, until)
        };
        if self.exact {
            same("times of a lease", times(oracle), times(store))?;
        }
        let handoff = |lease: &Lease| {
            lease.handoff.as_ref().map(|it| {
                (
                    it.successor.clone(),
                    it.stage,
                    it.drain_ms,
                    it.confirm_ms,
                    it.from.is_some(),
                )
            })
        };
        same("handoff", handoff(oracle), handoff(store))
    }

    pub fn acquired(&mut self, oracle: &Acquired, store: &Acquired) -> Result<(), Differs> {
        match (oracle, store) {
            (
                Acquired::Granted { leases, fresh },
                Acquired::Granted {
                    leases: theirs,
                    fresh: other,
                },
            ) => {
                same("fresh", fresh, other)?;
                each("grant", leases, theirs, |a, b| self.lease(a, b))
            }
            (Acquired::Refused(a), Acquired::Refused(b)) => self.refusal(a, b),
            _ => Err(differ("acquire", oracle, store)),
        }
    }

    fn refusal(&self, oracle: &Refusal, store: &Refusal) -> Result<(), Differs> {
        same("refused key", &oracle.key, &store.key)?;
        let (
            Cause::Held {
                holder,
                token,
                left_ms,
                labels,
            },
            Cause::Held {
                holder: other,
                token: theirs,
                left_ms: left,
                labels: facts,
            },
        ) = (&oracle.cause, &store.cause)
        else {
            return same("cause", &oracle.cause, &store.cause);
        };
        same("refusal", (holder, labels), (other, facts))?;
        if self.exact {
            same("time left", left_ms, left)?;
        }
        self.token(&oracle.key, *token, *theirs)
    }

    fn loss(oracle: &Loss, store: &Loss) -> Result<(), Differs> {
        same("loss", oracle, store)
    }

    pub fn renewed(&mut self, oracle: &[Renewed], store: &[Renewed]) -> Result<(), Differs> {
        each("renewals", oracle, store, |a, b| {
            same("renewed key", &a.key, &b.key)?;
            match (&a.outcome, &b.outcome) {
                (Ok(mine), Ok(theirs)) => self.lease(mine, theirs),
                (Err(mine), Err(theirs)) => Self::loss(mine, theirs),
                _ => Err(differ("renewal", a, b)),
            }
        })
    }

    pub fn leases(&mut self, oracle: &[Lease], store: &[Lease]) -> Result<(), Differs> {
        each("leases", oracle, store, |a, b| self.lease(a, b))
    }

    pub fn handoff(&mut self, oracle: &HandoffState, store: &HandoffState) -> Result<(), Differs> {
        match (oracle, store) {
            (HandoffState::Open(a), HandoffState::Open(b)) => {
                same("handoff", (&a.successor, a.stage), (&b.successor, b.stage))?;
                same(
                    "terms of a handoff",
                    (a.drain_ms, a.confirm_ms),
                    (b.drain_ms, b.confirm_ms),
                )?;
                if self.exact {
                    same("deadline of a handoff", a.until, b.until)?;
                }
                Ok(())
            }
            (HandoffState::Moved(a), HandoffState::Moved(b)) => self.lease(a, b),
            (HandoffState::Lost(a), HandoffState::Lost(b)) => Self::loss(a, b),
            _ => same("handoff", oracle, store),
        }
    }

    pub fn committed(&mut self, oracle: &Committed, store: &Committed) -> Result<(), Differs> {
        match (oracle, store) {
            (Committed::Done { leases, .. }, Committed::Done { leases: theirs, .. }) => {
                each("grant inside", leases, theirs, |a, b| self.lease(a, b))
            }
            (Committed::Refused(a), Committed::Refused(b)) => self.refusal(a, b),
            (
                Committed::Conflict { key, actual },
                Committed::Conflict {
                    key: theirs,
                    actual: other,
                },
            ) => same(
                "conflict",
                (key, actual.is_some()),
                (theirs, other.is_some()),
            ),
            _ => Err(differ("transaction", oracle, store)),
        }
    }

    pub fn verdict(&self, key: &Key, oracle: Verdict, store: Verdict) -> Result<(), Differs> {
        match (oracle, store) {
            (Verdict::Stale { latest }, Verdict::Stale { latest: theirs }) => {
                self.token(key, latest, theirs)
            }
            _ => same(&format!("verdict on {key}"), oracle, store),
        }
    }

    pub fn record(oracle: &Record, store: &Record) -> Result<(), Differs> {
        same(
            "record",
            (&oracle.key, json(Some(&oracle.value))),
            (&store.key, json(Some(&store.value))),
        )
    }

    /// The histories must be the same, in the same order, with growing revisions. Where time is
    /// not exact, only the order within each key is: two keys that lapse at nearly the same moment
    /// may do so in any order.
    pub fn events(&self, oracle: &[Event], store: &[Event]) -> Result<(), Differs> {
        let mut last = Revision::ZERO;
        for event in store {
            if event.revision <= last {
                return Err(format!("the revision does not grow at {event:?}"));
            }
            last = event.revision;
        }
        let sorted = |events: &[Event]| {
            let mut events = events.to_vec();
            if !self.exact {
                events.sort_by(|a, b| a.key.cmp(&b.key));
            }
            events
        };
        let brief = |events: &[Event]| -> Vec<_> {
            events
                .iter()
                .map(|event| (event.key.clone(), event.kind))
                .collect()
        };
        let (oracle, store) = (sorted(oracle), sorted(store));
        same("history", brief(&oracle), brief(&store))?;
        if self.exact {
            // Both count every change, kept renewals apart: no revision is left out.
            let steps = |events: &[Event]| -> Vec<u64> {
                let revisions = events.iter().map(|event| event.revision.get());
                let pairs = revisions.clone().zip(revisions.skip(1));
                pairs.map(|(before, after)| after - before).collect()
            };
            same("steps of the revision", steps(&oracle), steps(&store))?;
        }
        each("events", &oracle, &store, |a, b| {
            same(
                "cause and detail",
                (a.key.clone(), &a.cause, &a.detail),
                (b.key.clone(), &b.cause, &b.detail),
            )?;
            if self.exact {
                same("time of an event", a.at, b.at)?;
            }
            match (&a.lease, &b.lease) {
                (Some(mine), Some(theirs)) => {
                    same("holder of an event", &mine.holder, &theirs.holder)?;
                    same("labels of an event", &mine.labels, &theirs.labels)?;
                    if self.exact {
                        let until = (a.key.clone(), a.kind, mine.expires_at);
                        same("expiry", until, (b.key.clone(), b.kind, theirs.expires_at))?;
                    }
                    self.token(&a.key, mine.token, theirs.token)
                }
                (None, None) => Ok(()),
                _ => Err(differ("event", a, b)),
            }
        })
    }
}
