//! Sessions with real processes: the API, workers that are killed, clients that are paused, real ffmpeg,
//! on every backend.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

mod api;
mod elsewhere;
mod life;
mod many;
mod outage;
mod pause;
mod quiet;
mod race;
mod source;
mod week;
