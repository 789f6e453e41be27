//! The worker and the reaper of sessions, with real time and real children.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

mod faulty;
mod life;
mod routes;
mod store_gone;
mod world;
