//! What a move reports: how far it is, and what it did.

use serde::Serialize;

use super::check::Looked;
use crate::StoreUrl;

/// What is being copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// The history.
    Events,
    /// Sessions, runners, cameras and whatever else is a record.
    Records,
    /// Tokens and leases.
    Keys,
}

impl What {
    /// The word for people.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Events => "events",
            Self::Records => "records",
            Self::Keys => "keys",
        }
    }
}

/// How far a move is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// With what.
    pub what: What,
    /// How many are copied.
    pub done: u64,
    /// Of how many. The leases of the servers' own leaders are copied and not counted, so `done` may pass it.
    pub of: u64,
}

/// What a move did, or would do.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Report {
    /// The source, without its password.
    pub from: String,
    /// The target, without its password.
    pub to: String,
    /// Nothing was changed.
    pub dry_run: bool,
    /// An earlier move that was broken off was gone on with.
    pub resumed: bool,
    /// Keys whose newest token was carried over, with or without a lease.
    pub keys: u64,
    /// Live leases.
    pub leases: u64,
    /// Records.
    pub records: u64,
    /// Events of the history. Fewer than the source has where the target keeps fewer.
    pub events: u64,
    /// The target's newest revision.
    pub revision: u64,
    /// Every new token is larger than this, whatever its key.
    pub floor: u64,
    /// Keys that other programs hold in a Redis source by hand. They have no token and stay there.
    pub foreign: u64,
    /// What the target held of its own and was replaced: keys, records, events.
    pub replaced: [u64; 3],
}

impl Report {
    pub(super) fn new(from: &StoreUrl, to: &StoreUrl, looked: &Looked, resumed: bool) -> Self {
        let Looked {
            source,
            target,
            foreign,
            ..
        } = looked;
        let replaced = if resumed {
            [0; 3]
        } else {
            [target.keys, target.records, target.events]
        };
        Self {
            from: from.to_string(),
            to: to.to_string(),
            dry_run: false,
            resumed,
            keys: source.keys,
            leases: source.live,
            records: source.records,
            events: source.events,
            revision: source.revision.get(),
            floor: source.floor.max(looked.leaders).get(),
            foreign: *foreign,
            replaced,
        }
    }
}
