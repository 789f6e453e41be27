//! The agents with real stores: the supervisor of children, the orchestrator and the poller.

mod orchestrator;
mod poller;
mod supervise;
