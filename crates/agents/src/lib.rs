//! The agents: holders that own sessions, poll targets and cameras.

pub mod orchestrator;
pub mod poller;
pub mod supervise;
