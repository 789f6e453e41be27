//! The in-memory authority on the machine's own clock: the suite as it runs in real time.

use std::sync::Arc;

use leasehold_clock::System;
use leasehold_store::{
    conformance::RealTime,
    embedded::{Embedded, Options},
};

fn memory() -> RealTime {
    let store = Embedded::memory(Options::default(), Arc::new(System)).expect("a store starts");
    RealTime::new(Arc::new(store))
}

leasehold_store::conformance_tests!(memory());
leasehold_store::oracle_test!(memory());
