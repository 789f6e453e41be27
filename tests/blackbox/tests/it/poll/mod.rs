//! `leasehold poll`: real processes, a real Redis, and a target server that remembers every request
//! with the token it carried.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

mod backends;
mod fleet;
mod foreign;
mod logs;
mod metrics;
mod network;
mod nodes;
mod outage;
mod pause;
mod program;
mod scale;
mod sinks;
mod spread;
mod stopping;
mod takeover;
mod targets;
