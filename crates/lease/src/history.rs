//! Questions to the history (L21): who owned a key at a time, and did two owners ever overlap?

mod audit;
mod seal;

use std::collections::HashMap;

pub use audit::{Audit, Break, Scope, What, audit};
pub use seal::{Digest, Mark, Marks, Seal, SealPage};

use crate::{
    Event, EventKind, EventLease, Key, Revision, Token, UnixMillis,
    planted::{Bug, planted},
};

/// One owner's time, as the events record it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ownership {
    /// The lease.
    pub lease: EventLease,
    /// From when.
    pub from: UnixMillis,
    /// Until when, and by which event it ended; `None` while it lasts.
    pub until: Option<(UnixMillis, EventKind)>,
    /// The reason given for its end.
    pub detail: Option<std::sync::Arc<str>>,
}

/// The owners of one key in the order of their times. Feed it the events of that key, oldest first.
pub fn owners<'a>(events: impl IntoIterator<Item = &'a Event>) -> Vec<Ownership> {
    let mut owners: Vec<Ownership> = Vec::new();
    for event in events {
        let Some(lease) = &event.lease else { continue };
        if event.kind == EventKind::LeaseAcquired {
            owners.push(Ownership {
                lease: lease.clone(),
                from: event.at,
                until: None,
                detail: None,
            });
        } else if event.kind.ends_lease()
            && let Some(open) = owners
                .iter_mut()
                .rev()
                .find(|owner| owner.lease.id == lease.id && owner.until.is_none())
        {
            open.until = Some((event.at, event.kind));
            open.detail = event.text().map(Into::into);
        }
    }
    owners
}

/// Who owned the key at `at`, from the events of that key.
pub fn owner_at<'a>(
    events: impl IntoIterator<Item = &'a Event>,
    at: UnixMillis,
) -> Option<Ownership> {
    owners(events)
        .into_iter()
        .rev()
        .find(|owner| owner.from <= at && owner.until.is_none_or(|(until, _)| at < until))
}

/// What is wrong with a history.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// A revision does not come after the one before it.
    Disorder {
        /// Where.
        event: Box<Event>,
    },
    /// Revisions are missing before this event.
    Gap {
        /// The event behind the gap.
        event: Box<Event>,
        /// The first revision that is missing.
        missing: Revision,
    },
    /// A key was granted while an earlier lease of it had not ended.
    Overlap {
        /// The grant.
        event: Box<Event>,
        /// The token of the lease that was still there.
        earlier: Token,
    },
    /// A grant's token is not larger than an earlier one of its key.
    TokenWentBack {
        /// The grant.
        event: Box<Event>,
        /// The earlier token.
        earlier: Token,
    },
}

impl Fault {
    /// Where it shows.
    pub fn revision(&self) -> Revision {
        match self {
            Self::Disorder { event }
            | Self::Gap { event, .. }
            | Self::Overlap { event, .. }
            | Self::TokenWentBack { event, .. } => event.revision,
        }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Disorder { event } => {
                write!(
                    f,
                    "revision {} of {} is out of order",
                    event.revision, event.key
                )
            }
            Self::Gap { event, missing } => write!(
                f,
                "nothing is there between revision {missing} and revision {} of {}",
                event.revision, event.key
            ),
            Self::Overlap { event, earlier } => write!(
                f,
                "{} was granted at revision {} while token {earlier} had not ended",
                event.key, event.revision
            ),
            Self::TokenWentBack { event, earlier } => write!(
                f,
                "{} was granted at revision {} with a token not above {earlier}",
                event.key, event.revision
            ),
        }
    }
}

/// Which part of a history a verifier reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extent {
    /// Every change after this revision: none may be missing.
    After(Revision),
    /// Every change from the first one that is shown: none in between may be missing.
    Consecutive,
    /// Some of the changes, those of one key for example: gaps are no fault.
    Some,
}

/// Reads a history once, in order, and proves that no two owners' times overlap, no token goes back and,
/// where every change is there, none is missing.
///
/// A range that starts in the middle is fine: the end of a lease whose beginning is not in the
/// range says nothing wrong.
#[derive(Debug)]
pub struct Verifier {
    last_revision: Option<Revision>,
    every: bool,
    keys: HashMap<Key, (Token, bool)>,
    events: u64,
    faults: Vec<Fault>,
}

impl Verifier {
    /// How many faults are kept; a broken history needs no longer list.
    const MAX_FAULTS: usize = 100;

    /// A verifier of this part of a history.
    pub fn new(extent: Extent) -> Self {
        let (last_revision, every) = match extent {
            Extent::After(after) => (Some(after), true),
            Extent::Consecutive => (None, true),
            Extent::Some => (None, false),
        };
        Self {
            last_revision,
            every,
            keys: HashMap::new(),
            events: 0,
            faults: Vec::new(),
        }
    }

    /// Looks at the next event.
    pub fn see(&mut self, event: &Event) {
        self.events += 1;
        self.order(event);
        let Some(lease) = &event.lease else { return };
        if event.kind == EventKind::LeaseAcquired {
            let earlier = self.keys.insert(event.key.clone(), (lease.token, true));
            if let Some((earlier, live)) = earlier {
                if live {
                    self.fault(Fault::Overlap {
                        event: Box::new(event.clone()),
                        earlier,
                    });
                }
                if lease.token <= earlier {
                    self.fault(Fault::TokenWentBack {
                        event: Box::new(event.clone()),
                        earlier,
                    });
                }
            }
        } else if event.kind.ends_lease() {
            let entry = self
                .keys
                .entry(event.key.clone())
                .or_insert((lease.token, false));
            if entry.0 == lease.token {
                entry.1 = false;
            }
        }
    }

    fn order(&mut self, event: &Event) {
        let last = self.last_revision;
        if event.kind == EventKind::LeaseRenewed && last.is_some_and(|last| event.revision <= last)
        {
            // Not kept: it carries the revision that it came after.
            return;
        }
        self.last_revision = Some(event.revision);
        let Some(last) = last else { return };
        if event.revision <= last {
            if !planted(Bug::VerifierMissesDisorder) {
                self.fault(Fault::Disorder {
                    event: Box::new(event.clone()),
                });
            }
        } else if self.every && event.revision > last.next() && !planted(Bug::VerifierMissesGaps) {
            self.fault(Fault::Gap {
                event: Box::new(event.clone()),
                missing: last.next(),
            });
        }
    }

    /// How many events were seen, and what was wrong with them.
    pub fn finish(self) -> (u64, Vec<Fault>) {
        (self.events, self.faults)
    }

    fn fault(&mut self, fault: Fault) {
        if self.faults.len() < Self::MAX_FAULTS && !planted(Bug::VerifierMute) {
            self.faults.push(fault);
        }
    }
}
