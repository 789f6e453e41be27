//! A consumer of Leasehold's events that has the effect of each of them once, and in order.
//!
//! The publisher delivers at least once: after a crash the last batch may come again. What this
//! consumer does about it, and what any other should:
//!
//! * The effect of an event, and the note that it happened, are one transaction ([`Store`]). So a
//!   `message_id` that was seen is dropped, however often the process is killed.
//! * A message is acknowledged after that transaction, never before.
//! * Events of one key take effect in the order of their revisions, and a token that is older than the
//!   newest of its key is dropped: it comes from an owner that is none any more.
//! * Revisions and tokens belong to one authority: the part of the `message_id` before its last dash. A
//!   store that was rebuilt has another one, and begins anew.
//! * One consumer of the queue is active at a time; the broker makes another one take over.
//! * A message that makes no sense is moved aside, so that it does not block what comes after it.
//! * The broker may go away at any time; this connects again.

mod consume;
mod message;
mod store;

pub use consume::{Settings, declare, run};
pub use message::Message;
pub use store::{Applied, Error, Outcome, Store};
