//! Where time comes from. Everything else is given a [`Clock`] and never asks the machine itself.

mod backoff;
mod manual;
mod system;
mod ticks;

pub use backoff::Backoff;
pub use lease::{BootMillis, Clock, UnixMillis};
pub use manual::Manual;
pub use system::System;
pub use ticks::Ticks;
