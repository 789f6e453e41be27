//! The agents: holders that own sessions, poll targets and cameras.

pub mod camera;
mod ffmpeg;
mod listen;
pub mod orchestrator;
pub mod poller;
pub mod supervise;
