//! The reference worker and the short one in Python, with real ffmpeg, real video and a real broker.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

pub mod broker;
mod fence;
mod life;
mod login;
mod python;
pub mod world;
