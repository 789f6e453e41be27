//! The holder's stream: one WebSocket per holder that carries everything it does. Operations go up, many
//! at a time; their answers come down in the order in which they complete, and what the holder should
//! know comes down by itself. Everything it does is also possible with plain calls.
//!
//! A message is one frame or several. A frame is a type, the id of its operation and a body; `docs/stream.md`
//! has each of them with an example. There are two encodings of the same frames: [`Encoding::Binary`],
//! which is what our programs speak, and [`Encoding::Json`] for people and for programs that find JSON
//! easier.

mod frame;
#[cfg(test)]
mod page;
mod values;
mod wire;

use ::lease::{Key, Loss, Revision, Token};
use serde::{Deserialize, Serialize};

use crate::Time;

pub use frame::{Batch, Down, Frame, Payload, Unread, Up, read_down, read_up};

/// The header in which a holder names its own end of the connection, `address:port`. A server that
/// sees another one knows that something stands between them, and takes the end of the connection as
/// the end of nobody (L15).
pub const OWN_ADDRESS: &str = "leasehold-own-address";

/// How the frames of one connection are written. Its name is the WebSocket subprotocol, and the number in
/// it the version: a change of an existing frame is a new version, a new type of frame is not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Encoding {
    /// Compact: binary messages of frames one after the other.
    #[default]
    Binary,
    /// Readable: text messages, each a JSON object or an array of them.
    Json,
}

impl Encoding {
    /// All of them, the default first.
    pub const ALL: [Self; 2] = [Self::Binary, Self::Json];

    /// The WebSocket subprotocol.
    pub const fn subprotocol(self) -> &'static str {
        match self {
            Self::Binary => "leasehold.v1",
            Self::Json => "leasehold.v1.json",
        }
    }

    /// The encoding with that subprotocol.
    pub fn of(subprotocol: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|encoding| encoding.subprotocol() == subprotocol)
    }
}

/// The first frame of a connection: whose stream this is, and its limits.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Welcome {
    /// The holder's name.
    pub holder: String,
    /// The holder's process start.
    pub incarnation: String,
    /// The time on the authority's clock.
    pub now: Time,
    /// Whether the end of this connection counts as proof of death (L15), unless the holder connects
    /// again within the server's linger: only on a direct connection.
    pub proves_death: bool,
    /// How many acquires may be in flight at a time; more are refused, and nothing happened.
    pub max_acquires: usize,
    /// How many other operations may be in flight at a time; more are refused, and nothing happened.
    pub max_others: usize,
    /// The largest message that the server reads, in bytes.
    pub max_message_bytes: usize,
}

/// A lease that the holder has.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Held {
    /// Its key.
    pub key: Key,
    /// Its token.
    pub token: Token,
}

/// How a holder departs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Departing {
    /// It leaves gracefully: everything it has is released.
    Left,
    /// It took over its own name: whatever earlier incarnations had is released (L15).
    Succeeded,
}

/// Where a wait stands in the queue of its first key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Position {
    /// 1 for the next one to be granted; 0 for one that does not wait any more.
    pub place: usize,
    /// How many wait for the key.
    pub waiting: usize,
}

/// A lease of this holder that is gone (L17).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Lost {
    /// Its key.
    pub key: Key,
    /// Its token.
    pub token: Token,
    /// Why.
    pub loss: Loss,
    /// The change that ended it.
    pub revision: Revision,
}
