//! The holder's stream: one WebSocket per holder, JSON texts both ways. Renewals go up in batches;
//! losses come down at once. Everything it does is also possible with plain calls.

use serde::{Deserialize, Serialize};

use crate::{Loss, Problem, RenewItem, Renewed, Time};

/// The WebSocket subprotocol.
pub const SUBPROTOCOL: &str = "leasehold.v1";

/// The header in which a holder names its own end of the connection, `address:port`. A server that
/// sees another one knows that something stands between them, and takes the end of the connection as
/// the end of nobody (L15).
pub const OWN_ADDRESS: &str = "leasehold-own-address";

/// What a holder sends.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "type", deny_unknown_fields)]
pub enum Up {
    /// Keep leases; answered by [`Down::Renewed`] with the same `seq`.
    Renew {
        /// Counts the holder's requests.
        seq: u64,
        /// Which ones; absent means whatever this holder and incarnation has.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        leases: Option<Vec<RenewItem>>,
    },
    /// The holder closes its stream in good order and goes on without it: what follows is not its
    /// death.
    Goodbye,
}

/// What a holder is told.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "type")]
pub enum Down {
    /// The first message: whose stream this is.
    Welcome {
        /// The holder's name.
        holder: String,
        /// The holder's process start.
        incarnation: String,
        /// The time on the authority's clock.
        now: Time,
        /// Whether the end of this connection counts as proof of death (L15), unless the holder
        /// connects again within the server's linger: only on a direct connection.
        proves_death: bool,
    },
    /// The answer to a renewal.
    Renewed {
        /// Of the request.
        seq: u64,
        /// An answer per lease.
        results: Vec<Renewed>,
    },
    /// A lease of this holder is gone (L17).
    Lost {
        /// The grant.
        lease_id: String,
        /// The kind of its key.
        kind: String,
        /// The id of its key.
        id: String,
        /// Its token.
        token: u64,
        /// Why.
        loss: Loss,
    },
    /// Events were missed: renew everything at once to learn what is still held.
    Missed,
    /// A request could not be answered.
    Failed {
        /// Of the request; absent when the message could not be read at all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        seq: Option<u64>,
        /// Why.
        problem: Box<Problem>,
    },
    /// The server closes the stream; the leases are untouched.
    Goodbye {
        /// Why.
        reason: String,
    },
}
