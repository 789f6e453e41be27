//! The kernel from outside: values, rules of the engine, rendezvous and the tenure of a holder.

extern crate leasehold_lease as lease;

mod engine_between_ticks;
mod engine_edges;
mod engine_invariants;
mod expiry_order;
mod planted;
mod rendezvous;
mod session;
mod session_sequences;
mod tenure;
mod values;
mod verifier;
