//! `leasehold poll`: real processes, a real Redis, and a target server that remembers every request
//! with the token it carried.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

mod fleet;
mod network;
mod outage;
mod pause;
mod program;
mod spread;
mod takeover;
