//! Why a move did not happen.

use std::fmt;

use lease::{Key, Revision, Token};

use super::Maintenance;
use crate::OpenError;

/// One end of a move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// Where everything is.
    Source,
    /// Where everything is to be.
    Target,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Source => "source",
            Self::Target => "target",
        })
    }
}

/// Why a move did not happen. Unless it says otherwise, nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `memory:` cannot be moved.
    #[error("memory: ends with its process: there is nothing to move from it or to it")]
    Memory,
    /// One store is not two.
    #[error("source and target are the same store")]
    Same,
    /// An end cannot be opened.
    #[error("the {0} cannot be opened: {1}")]
    Open(Side, OpenError),
    /// The source holds nothing.
    #[error("there is no store in the source")]
    NoStore,
    /// An end failed. What was copied so far stays closed: repeat the command, or abort.
    #[error("the {0} failed: {1}")]
    Store(Side, lease::Error),
    /// A server works on an end.
    #[error("a server is at work on the {side} ({who}): stop every server first")]
    AtWork {
        /// Which end.
        side: Side,
        /// Which server, as it names itself.
        who: String,
    },
    /// An end belongs to another move.
    #[error("the {side} is closed: {maintenance}")]
    Maintenance {
        /// Which end.
        side: Side,
        /// Why.
        maintenance: Maintenance,
    },
    /// The target has something of its own.
    #[error(
        "the target is not empty: it holds {keys} keys, {records} records and {events} events of its own"
    )]
    NotEmpty {
        /// Its keys with tokens.
        keys: u64,
        /// Its records.
        records: u64,
        /// Its events.
        events: u64,
    },
    /// The target would go back (L3).
    #[error(
        "the target gave {key} the token {target}, the source only {source_token}: a move would take tokens back, so nothing was written"
    )]
    LargerToken {
        /// The key.
        key: Key,
        /// Its newest token in the target.
        target: Token,
        /// Its newest token in the source, or the source's floor where that is larger.
        source_token: Token,
    },
    /// The target would go back, for keys that it no longer remembers one by one.
    #[error(
        "the target's tokens begin above {target}, the source's above {source_floor}: a move would take tokens back, so nothing was written"
    )]
    LargerFloor {
        /// The target's floor.
        target: Token,
        /// The source's floor.
        source_floor: Token,
    },
    /// Another program holds the key in the target.
    #[error("another program holds {key} in the target, and the source has granted it too")]
    Foreign {
        /// The key.
        key: Key,
    },
    /// A server was faster.
    #[error(
        "the {side} was changed while it was looked at (revision {before}, then {after}): is every server stopped?"
    )]
    Changed {
        /// Which end.
        side: Side,
        /// When it was looked at first.
        before: Revision,
        /// And then.
        after: Revision,
    },
    /// The copy is not whole. The target stays closed.
    #[error(
        "the target holds {found} {what} after the copy, {expected} were sent: it stays closed"
    )]
    Incomplete {
        /// Of what.
        what: &'static str,
        /// How many were sent.
        expected: u64,
        /// How many are there.
        found: u64,
    },
    /// There is nothing to call off.
    #[error("no move from this source to this target is under way")]
    NothingToAbort,
    /// It cannot be called off any more.
    #[error("the move is finished: {0} is in use now. Move it back the other way round")]
    Finished(String),
}
