//! The agents: holders that own sessions, poll targets and cameras.

pub mod manager;
pub mod orchestrator;
pub mod poller;
pub mod supervise;
mod surface;
