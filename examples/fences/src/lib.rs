//! Fences: how a receiver refuses a holder that woke up late.
//!
//! A lease alone does not make two processes' writes exclusive: a holder can be paused between its
//! last look at the lease and its write. Whoever receives the write has to look at the token. The rule
//! is the same everywhere: remember the newest token of each key, in the same atomic step as the
//! write, and refuse anything older.
//!
//! | receiver | fence |
//! |---|---|
//! | PostgreSQL | [`postgres`]: a function, and a trigger for tables in which nobody may forget it |
//! | Redis | [`redis`]: a script |
//! | an HTTP service | [`FenceLayer`]: a tower layer |
//! | a batch of messages | [`batch::screen`]: the server's own answer for many tokens at once |
//!
//! `docs/fences.md` tells when to take which.

pub mod batch;
mod error;
mod layer;
mod marks;
pub mod postgres;
pub mod redis;

pub use error::WriteError;
pub use layer::{FENCE_HEADER, Fence, FenceLayer, KEY_HEADER, Rejection};
pub use marks::Marks;
