//! The worker and the reaper of sessions, with real time and real children.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

mod doors;
mod faulty;
mod life;
mod store_gone;
mod world;
