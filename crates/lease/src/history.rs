//! Questions to the history (L21): who owned a key at a time, and did two owners ever overlap?

mod audit;
mod seal;

use std::collections::HashMap;

pub use audit::{Audit, Break, Scope, What, audit};
pub use seal::{Digest, Mark, Marks, Seal, SealPage};

use crate::{Event, EventKind, EventLease, Key, Token, UnixMillis};

/// One owner's time, as the events tell it.
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
            open.detail.clone_from(&event.detail);
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
    pub fn revision(&self) -> crate::Revision {
        match self {
            Self::Disorder { event }
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

/// Reads a history once, in order, and proves that no two owners' times overlap.
///
/// A range that starts in the middle is fine: the end of a lease whose beginning is not in the
/// range says nothing wrong.
#[derive(Default, Debug)]
pub struct Verifier {
    last_revision: Option<crate::Revision>,
    keys: HashMap<Key, (Token, bool)>,
    events: u64,
    faults: Vec<Fault>,
}

impl Verifier {
    /// How many faults are kept; a broken history needs no longer list.
    const MAX_FAULTS: usize = 100;

    /// Looks at the next event.
    pub fn see(&mut self, event: &Event) {
        self.events += 1;
        let kept = event.kind != EventKind::LeaseRenewed;
        if kept {
            if self
                .last_revision
                .is_some_and(|last| event.revision <= last)
            {
                self.fault(Fault::Disorder {
                    event: Box::new(event.clone()),
                });
            }
            self.last_revision = Some(event.revision);
        }
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

    /// How many events were seen, and what was wrong with them.
    pub fn finish(self) -> (u64, Vec<Fault>) {
        (self.events, self.faults)
    }

    fn fault(&mut self, fault: Fault) {
        if self.faults.len() < Self::MAX_FAULTS {
            self.faults.push(fault);
        }
    }
}
