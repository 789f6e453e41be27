//! What one instance knows about a target's lease.

use lease::{Token, UnixMillis};
use serde::Serialize;

/// A target's lease from this instance's point of view.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseState {
    /// Nothing is known, or nobody has it.
    Unknown,
    /// This instance has it.
    Owned,
    /// Another instance, or a foreign program, has it.
    Other,
    /// This instance has it, but a renewal failed and the deadline is not reached: no new poll
    /// starts, running ones may finish.
    Uncertain,
}

/// A target's lease from this instance's point of view, with its times.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct LeaseInfo {
    /// The target.
    pub target: String,
    /// Who owns it.
    pub owner: Option<String>,
    /// How this instance stands to it.
    pub state: LeaseState,
    /// When its owner acquired it, as far as it is known.
    pub acquired_at: Option<UnixMillis>,
    /// The last renewal that is known here.
    pub last_renewed_at: Option<UnixMillis>,
    /// Since when it is uncertain.
    pub uncertain_since: Option<UnixMillis>,
    /// Under which token; none for a foreign program's.
    pub token: Option<Token>,
}
