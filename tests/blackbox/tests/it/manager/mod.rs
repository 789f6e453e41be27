//! `leasehold manager`: real servers, managers and workers. Workers write down what they publish, with
//! the token, and that is the proof.

mod changes;
mod config;
mod deploy;
mod ending;
mod faults;
mod handover;
mod isolation;
mod network;
mod others;
mod outage;
mod spread;
mod versions;
mod video;

use leasehold_blackbox::stage;
