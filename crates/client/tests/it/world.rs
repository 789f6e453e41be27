//! One authority in memory, one clock that stands still, and any number of keepers.

use std::{sync::Arc, time::Duration};

use lease::{Authority, Holder, Key, Lease, Ttl, UnixMillis};
use leasehold_client::keeper::{Keeper, Options};
use leasehold_clock::Manual;
use leasehold_store::embedded::{self, Embedded};
use leasehold_testkit::wait::until;

use crate::faulty::{Faulty, calls_on_their_way};

/// Long enough for a busy machine; reached only by a test that fails.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub struct World {
    pub clock: Manual,
    pub store: Arc<dyn Authority>,
}

impl World {
    pub fn new() -> Self {
        let clock = Manual::new(UnixMillis::new(1_800_000_000_000));
        let store =
            Embedded::memory(embedded::Options::default(), Arc::new(clock.clone())).unwrap();
        Self {
            clock,
            store: Arc::new(store),
        }
    }

    /// A keeper without the stream of changes, behind a network of its own.
    pub fn keeper(&self, name: &str) -> (Keeper, Arc<Faulty>) {
        self.keeper_with(name, quiet())
    }

    pub fn keeper_with(&self, name: &str, options: Options) -> (Keeper, Arc<Faulty>) {
        let network = Faulty::new(self.store.clone(), self.clock.clone());
        let incarnation = leasehold_client::new_incarnation();
        let holder = Holder::new(name, incarnation.as_str()).unwrap();
        let clock = Arc::new(self.clock.clone());
        let keeper = Keeper::start(network.clone(), holder, clock, options);
        (keeper, network)
    }

    /// What the authority itself says.
    pub async fn lease(&self, key: &Key) -> Option<Lease> {
        self.store.lease(key.clone()).await.unwrap()
    }

    pub async fn is_free(&self, key: &Key) -> bool {
        self.lease(key).await.is_none()
    }

    /// Moves time forward bit by bit, and waits after each bit until `done` or the tasks had their
    /// turn.
    pub async fn advance(&self, millis: u64, step: u64) {
        for _ in 0..millis / step {
            self.clock.advance(step);
            turn().await;
        }
    }
}

/// Lets every task run for a while, and the store, which has a thread of its own, answer what it was asked:
/// on a busy machine time would go on without it otherwise.
pub async fn turn() {
    let yields = async || {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    };
    yields().await;
    tokio::time::sleep(Duration::from_millis(1)).await;
    until(PATIENCE, "the store answers", async || {
        calls_on_their_way() == 0
    })
    .await;
    yields().await;
}

/// No jitter and no stream: what the tests see is the renewals alone.
pub fn quiet() -> Options {
    Options {
        jitter_percent: 0,
        watch: false,
        ..Options::default()
    }
}

pub fn key(id: &str) -> Key {
    Key::new("test", id).unwrap()
}

pub fn ttl(millis: u64) -> Ttl {
    Ttl::from_millis(millis).unwrap()
}

pub async fn eventually(what: &str, probe: impl AsyncFnMut() -> bool) {
    until(PATIENCE, what, probe).await;
}
