//! Stream sessions: the record, the table of states, and every transition with the one transaction that it
//! needs, as pure functions. Routes, workers and reapers load, call and commit; nothing else changes a session.
//!
//! - [`start()`]: the session, its idempotency key and its lease appear together.
//! - [`claim`], [`ready`], [`end`]: what its worker does.
//! - [`stop`], [`heartbeat`]: what its client asks for.
//! - [`expire`], [`worker_lost`], [`worker_restarted`], [`forget`]: what is done where nobody works on it.

mod ending;
mod start;
mod transitions;
mod unattended;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{Invalid, Key, Note, Record, UnixMillis, Write, text::is_plain};

pub use ending::Ending;
pub use start::{
    Mapping, Put, Request, Reserved, intended, intent_key, reserve, service_key, start,
};
pub use transitions::{
    Change, Declined, Loaded, Unclaimed, claim, end, expire, heartbeat, ready, stop, worker_lost,
    worker_restarted,
};
pub use unattended::{Unattended, forget, is_forgettable, unattended};

/// The kind of session records and of session leases.
pub const KIND: &str = "session";
/// The kind of the records that map an idempotency key to its session.
pub const INTENT_KIND: &str = "intent";
/// The kind of the leases of services, and of the records that reserve them.
pub const SERVICE_KIND: &str = "service";

/// Names a session. Sorts newest first, so that a list in the order of ids is a list by age.
pub fn new_id(now: UnixMillis, random: [u8; 10]) -> Uuid {
    const MAX_48_BITS: u64 = (1 << 48) - 1;
    let newest_first = MAX_48_BITS - now.get().min(MAX_48_BITS);
    let mut bytes = [0; 16];
    bytes[..6].copy_from_slice(&newest_first.to_be_bytes()[2..]);
    bytes[6..].copy_from_slice(&random);
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}

/// The key of a session's record and of its lease.
pub fn key(id: Uuid) -> Key {
    Key::new(KIND, &id.to_string()).expect("a UUID is a well-formed id")
}

/// The server's idempotency key of a start: no other value counts. Live streams share bucket 0;
/// catch-up streams are distinguished by whole seconds.
pub fn idempotency_key(service_ref: &str, profile: &str, start_ms: Option<u64>) -> String {
    let bucket = start_ms.unwrap_or(0) / 1000;
    let text = format!("v1:stream.start:{service_ref}:{profile}:{bucket}");
    crate::canonical::hex_sha256(text.as_bytes())
}

/// Checks a service reference.
pub fn check_service_ref(text: &str) -> Result<(), Invalid> {
    if text.is_empty() || text.len() > MAX_SERVICE_REF_BYTES || !crate::text::is_visible(text) {
        return Err(Invalid::new(
            "service_ref",
            "1 to 256 printable bytes without spaces",
        ));
    }
    Ok(())
}

/// The longest reference to a service, in bytes.
pub const MAX_SERVICE_REF_BYTES: usize = 256;
/// The longest name of a profile, in bytes.
pub const MAX_PROFILE_BYTES: usize = 64;
/// The longest correlation id, in bytes.
pub const MAX_CORRELATION_ID_BYTES: usize = 64;

/// Checks a profile's name.
pub fn check_profile(text: &str) -> Result<(), Invalid> {
    if text.is_empty() || text.len() > MAX_PROFILE_BYTES || !is_plain(text) {
        return Err(Invalid::new(
            "profile",
            "1 to 64 characters of A-Z a-z 0-9 . _ -",
        ));
    }
    Ok(())
}

/// Checks a correlation id.
pub fn check_correlation_id(text: &str) -> Result<(), Invalid> {
    if text.is_empty() || text.len() > MAX_CORRELATION_ID_BYTES || !is_plain(text) {
        return Err(Invalid::new(
            "correlation_id",
            "1 to 64 characters of A-Z a-z 0-9 . _ -",
        ));
    }
    Ok(())
}

/// Where a session is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Accepted, and nobody works on it yet.
    New,
    /// A worker claimed it.
    Starting,
    /// Playable.
    Running,
    /// On its way out.
    Stopping,
    /// Over, as somebody wanted.
    Stopped,
    /// Over, against everybody's will.
    Failed,
    /// Refused before it ran.
    Ended,
}

impl State {
    /// All states, in the order of a life.
    pub const ALL: [Self; 7] = [
        Self::New,
        Self::Starting,
        Self::Running,
        Self::Stopping,
        Self::Stopped,
        Self::Failed,
        Self::Ended,
    ];

    /// The word used in every route and store.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
            Self::Ended => "ended",
        }
    }

    /// The state with that word.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }

    /// Terminal states absorb everything.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Stopped | Self::Failed | Self::Ended)
    }

    /// The table: which state may follow which.
    const fn may_become(self, next: Self) -> bool {
        match (self, next) {
            // Claimed, and onwards.
            (Self::New, Self::Starting)
            | (Self::Starting, Self::Running)
            // A stop wins at any time before the end.
            | (Self::New | Self::Starting | Self::Running, Self::Stopping)
            | (Self::New | Self::Starting | Self::Running | Self::Stopping, Self::Stopped | Self::Failed)
            // Refused before it ran.
            | (Self::New | Self::Starting, Self::Ended) => true,
            _ => false,
        }
    }
}

/// Why a session is in its state.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[expect(
    missing_docs,
    reason = "the words are the contract, and say it themselves"
)]
pub enum Reason {
    #[default]
    #[serde(rename = "R_NONE")]
    None,
    #[serde(rename = "R_LEASE_BUSY")]
    LeaseBusy,
    #[serde(rename = "R_NO_TUNER")]
    NoTuner,
    #[serde(rename = "R_LEASE_EXPIRED")]
    LeaseExpired,
    #[serde(rename = "R_LEASE_LOST")]
    LeaseLost,
    #[serde(rename = "R_CLIENT_STOP")]
    ClientStop,
    #[serde(rename = "R_PIPELINE_FAILED")]
    PipelineFailed,
    #[serde(rename = "R_PIPELINE_TIMEOUT")]
    PipelineTimeout,
    #[serde(rename = "R_WORKER_LOST")]
    WorkerLost,
    #[serde(rename = "R_SHUTDOWN")]
    Shutdown,
}

impl Reason {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::None,
        Self::LeaseBusy,
        Self::NoTuner,
        Self::LeaseExpired,
        Self::LeaseLost,
        Self::ClientStop,
        Self::PipelineFailed,
        Self::PipelineTimeout,
        Self::WorkerLost,
        Self::Shutdown,
    ];
}

/// A session as it is kept. Its lease (`session:<id>`) is kept apart and says until when it lives.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Session {
    /// Which one.
    pub session_id: Uuid,
    /// What is streamed.
    pub service_ref: String,
    /// How.
    pub profile: String,
    /// From where, for catch-up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_ms: Option<u64>,
    /// Where it is in its life.
    pub state: State,
    /// Why.
    #[serde(default)]
    pub reason: Reason,
    /// In words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason_detail: Option<String>,
    /// `REJECTED_BUSY` or `REJECTED_NO_TUNER`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    /// `LEASE_EXPIRED` on expiry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<String>,
    /// The request that started it.
    pub correlation_id: String,
    /// Its idempotency key.
    pub idempotency_key: String,
    /// When it was accepted.
    pub created_at: UnixMillis,
    /// When it last changed.
    pub updated_at: UnixMillis,
    /// The worker that claimed it, with its incarnation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<crate::Holder>,
    /// The tuner slot it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tuner_slot: Option<String>,
    /// The tenant it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Whether its service is reserved for it from its start on (phase 1): see [`reserve`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reserved: bool,
}

impl Session {
    /// The record of this session.
    pub fn to_write(&self) -> Write {
        let value = serde_json::to_string(self).expect("a session is plain data");
        Write {
            key: key(self.session_id),
            value: Some(value.into()),
            note: Some(Note::Session(self.state)),
        }
    }

    /// The session in a record.
    pub fn from_record(record: &Record) -> Result<Self, Invalid> {
        serde_json::from_str(&record.value).map_err(|_| Invalid::new("session", "a session record"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_contracts_vectors() {
        assert_eq!(
            idempotency_key("1:0:1:445D:453:1:C00000:0:0:0:", "high", None),
            "21d17f1eec183ecb2fcd571304c302129669dd55311b67ed4160593eeffc7899"
        );
        assert_eq!(
            idempotency_key("1:0:19:132F:3EF:1:C00000:0:0:0:RACETEST", "auto", Some(0)),
            "d9b8e02fbfcc22ffdb2a48504b41ef25cf9f98442515fbfde5004ae218cb5d1a"
        );
    }

    #[test]
    fn terminal_states_absorb_everything() {
        for from in State::ALL.into_iter().filter(|state| state.is_terminal()) {
            for to in State::ALL {
                assert!(!from.may_become(to), "{from:?} became {to:?}");
            }
        }
        // A stop that arrives during start-up wins: the session never becomes running.
        assert!(!State::Stopping.may_become(State::Running));
    }

    #[test]
    fn ids_sort_newest_first() {
        let older = new_id(UnixMillis::new(1_000), [7; 10]);
        let newer = new_id(UnixMillis::new(1_001), [0; 10]);
        assert!(newer.to_string() < older.to_string());
    }
}
