//! Many instances, many targets, each target polled by exactly one instance, and nobody configures
//! anything.
//!
//! A [`Coordinator`] announces its instance, finds targets, owns those it should have by the split
//! that all instances compute alike, renews what it has in one call, takes over immediately what others
//! let go, and hands over what another instance should have. It sees only an [`lease::Authority`]:
//! the same code runs on Redis, PostgreSQL, the embedded store and over HTTP.
//!
//! Desired is not owned: only a grant makes an owner, and a [`PollPermit`] allows one poll.

mod coordinator;
mod discovery;
mod handover;
mod info;
mod instance;
mod mirror;
mod options;
mod plan;
pub mod program;
mod reconciler;
mod table;
mod target;

pub use coordinator::{Coordinator, Error};
pub use discovery::fleet;
pub use info::{LeaseInfo, LeaseState};
pub use instance::InstanceId;
pub use options::Options;
pub use table::PollPermit;
pub use target::{Target, Targets};
