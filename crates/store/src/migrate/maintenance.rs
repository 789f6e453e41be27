//! A backend that is being moved, or was, is closed: two backends must never both answer for one key.

use std::fmt;

use lease::Token;
use serde::{Deserialize, Serialize};

/// Why a backend is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Its contents are being moved away.
    Leaving,
    /// They were moved away.
    Left,
    /// Contents are being moved in, and may be there in part.
    Arriving,
}

/// Closes a backend to servers. Written into the backend itself, so that every server sees it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Maintenance {
    /// Which move: the same at both ends.
    pub id: uuid::Uuid,
    /// Why.
    pub phase: Phase,
    /// The other end, without its password.
    pub peer: String,
    /// The largest token that this backend gave to its own leaders before it was overwritten.
    pub floor: Token,
}

impl Maintenance {
    /// The same, a phase later.
    #[must_use]
    pub(crate) fn with(&self, phase: Phase) -> Self {
        Self {
            phase,
            ..self.clone()
        }
    }
}

impl fmt::Display for Maintenance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let peer = &self.peer;
        match self.phase {
            Phase::Leaving => write!(
                f,
                "it is being moved to {peer}: repeat `leasehold migrate` to finish that, or add --abort to take it back"
            ),
            Phase::Left => write!(f, "it was moved to {peer}: use that one"),
            Phase::Arriving => write!(
                f,
                "the move of {peer} to here is not finished: repeat `leasehold migrate`, or add --abort to call it off"
            ),
        }
    }
}
