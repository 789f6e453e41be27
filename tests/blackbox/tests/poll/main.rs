//! `leasehold poll`: real processes, a real Redis, and a target server that remembers every request
//! with the token it carried.

mod fleet;
mod network;
mod outage;
mod pause;
mod program;
mod spread;
mod takeover;
