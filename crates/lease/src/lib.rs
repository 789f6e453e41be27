//! The kernel of Leasehold: who owns a piece of work right now, until when, and under which
//! fencing token.
//!
//! Everything here is a value or a pure function. The [`Engine`] is the complete state of an
//! authority as a state machine — `apply(now, command)` gives an outcome and events. It makes the
//! decisions of the embedded store, and is the subject of the simulator and the oracle against which
//! every other store is tested. Nothing here does I/O or reads a clock.
//!
//! Rules are cited by their number (L1–L21), as in the documentation's page on lease semantics.

mod answer;
mod authority;
pub mod canonical;
mod deadline;
pub mod engine;
mod error;
mod event;
pub mod history;
mod holder;
mod key;
mod labels;
mod lease;
pub mod order;
#[doc(hidden)]
pub mod planted;
mod policy;
pub mod polling;
mod record;
pub mod redact;
pub mod registry;
pub mod rendezvous;
mod request;
pub mod session;
mod text;
mod time;
mod token;
mod watching;

pub use answer::{Answer, Capabilities, Decided, Seen, Typed, Watch, answered};
pub use authority::{Authority, Command, Named, Outcome, Query, View};
pub use deadline::{Margin, Standing, Tenure};
pub use engine::Engine;
pub use error::Error;
pub use event::{Event, EventCause, EventKind, EventLease, Terms};
pub use holder::{Holder, HolderName, Identity, Incarnation};
pub use key::{CREDENTIAL, Key, LOGIN, PRIVATE_KINDS, REPLICA, RESERVED_KINDS, check_kind};
pub use labels::{Labels, REQUEST, SITE, TENANT};
pub use lease::{Handoff, HandoffStage, Lease, LeaseId, Loss, Revision, Status};
pub use policy::{Grace, OnOutage};
pub use record::{Committed, Expect, Note, Record, Transaction, Write};
pub use request::{
    Acquire, Acquired, Cause, Departure, EventPage, EventQuery, HandoffState, HandoffStep, Kept,
    LeaseQuery, LeaseRef, Notice, Page, RecordQuery, Refusal, Renew, Renewal, Renewals, Renewed,
    Revoke, Snapshot, Verdict, Want,
};
pub use text::Invalid;
pub use time::{BootMillis, Clock, Ttl, UnixMillis};
pub use token::Token;
pub use watching::Watching;
