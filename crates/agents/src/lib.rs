//! The agents: holders that own sessions, poll targets and cameras.

pub mod camera;
mod ffmpeg;
pub mod manager;
pub mod orchestrator;
pub mod poller;
pub mod process;
pub mod supervise;
mod surface;

pub use surface::{Streams, Tls, serve_worker};
