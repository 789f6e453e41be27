//! The in-memory authority, on a clock moved by hand, passes the suite.

use std::sync::Arc;

use leasehold_clock::{Manual, UnixMillis};
use leasehold_store::{
    conformance::Virtual,
    embedded::{Embedded, Options},
};

fn memory() -> Virtual {
    let clock = Manual::new(UnixMillis::new(1_700_000_000_000));
    let store = Embedded::memory(Options::default(), Arc::new(clock.clone()))
        .expect("a store in memory starts");
    Virtual::new(Arc::new(store), clock)
}

leasehold_store::conformance_tests!(memory());
leasehold_store::oracle_test!(memory());

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l3_a_forgotten_key_never_sees_a_smaller_token_in_memory() {
    let clock = Manual::new(UnixMillis::new(1_700_000_000_000));
    let mut options = Options::default();
    options.engine.idle_keys = 0;
    let store = Embedded::memory(options, Arc::new(clock.clone())).expect("a store starts");
    let harness = Virtual::new(Arc::new(store), clock);
    leasehold_store::conformance::granting::l3_a_forgotten_key_never_sees_a_smaller_token(&harness)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l6_a_grant_that_nobody_took_goes_back_in_memory() {
    leasehold_store::conformance::waiting::l6_a_grant_that_nobody_took_goes_back(&memory()).await;
}
