//! What the suite needs from a store under test.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use lease::Authority;
use leasehold_clock::Manual;

/// The future of something that a harness does.
pub type Step<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// How a store's time runs in the suite.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pace {
    /// The ttl of a lease that the test lets lapse.
    pub short_ms: u64,
    /// How much longer than that is waited, so that it has lapsed for certain.
    pub slack_ms: u64,
    /// Whether time only moves when the test says so, so that moments can be compared exactly.
    pub exact: bool,
}

impl Pace {
    /// Time stands still until [`Harness::pass`] moves it.
    pub const VIRTUAL: Self = Self {
        short_ms: 10_000,
        slack_ms: 0,
        exact: true,
    };
    /// Time runs by itself: short enough to wait for, long enough for a busy machine.
    pub const REAL: Self = Self {
        short_ms: 800,
        slack_ms: 300,
        exact: false,
    };
}

/// How an authority goes down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Restart {
    /// Gracefully.
    Stop,
    /// Without a word: nothing is written that was not written already.
    Crash,
}

/// A store under test. Made anew, with an empty authority, for every function of the suite.
pub trait Harness: Send + Sync + 'static {
    /// The authority.
    fn authority(&self) -> Arc<dyn Authority>;

    /// How time runs here.
    fn pace(&self) -> Pace;

    /// Lets this much of the authority's time pass.
    fn pass(&self, millis: u64) -> Step<'_, ()>;

    /// The same, without a tick: what lapses is not expired yet. `false`, with no time passed, where
    /// the authority ticks by itself before it does anything else.
    fn pass_without_tick(&self, millis: u64) -> Step<'_, bool> {
        let _ = millis;
        Box::pin(async { false })
    }

    /// Takes the authority down, lets `down_ms` of time pass, and starts it again on the same state;
    /// [`Harness::authority`] is the new one then. Only for harnesses whose tests ask for it.
    fn restart(&self, how: Restart, down_ms: u64) -> Step<'_, ()> {
        unreachable!("no way to restart this store ({how:?}, {down_ms} ms)")
    }

    /// Makes the history forget what happened up to now (L20); [`Harness::authority`] may be a new
    /// one then. `false` when this backend's test has no way to do so.
    fn forget_history(&self) -> Step<'_, bool> {
        Box::pin(async { false })
    }
}

/// A store on a clock that the test moves.
pub struct Virtual {
    authority: Arc<dyn Authority>,
    clock: Manual,
}

impl Virtual {
    /// `authority` must go by `clock`.
    pub fn new(authority: Arc<dyn Authority>, clock: Manual) -> Self {
        Self { authority, clock }
    }
}

impl Harness for Virtual {
    fn authority(&self) -> Arc<dyn Authority> {
        self.authority.clone()
    }

    fn pace(&self) -> Pace {
        Pace::VIRTUAL
    }

    fn pass(&self, millis: u64) -> Step<'_, ()> {
        self.clock.advance(millis);
        Box::pin(tokio::task::yield_now())
    }
}

/// A store that goes by a clock of its own.
pub struct RealTime {
    authority: Arc<dyn Authority>,
}

impl RealTime {
    /// `authority` must be empty, or at least in a namespace that nothing else uses.
    pub fn new(authority: Arc<dyn Authority>) -> Self {
        Self { authority }
    }
}

impl Harness for RealTime {
    fn authority(&self) -> Arc<dyn Authority> {
        self.authority.clone()
    }

    fn pace(&self) -> Pace {
        Pace::REAL
    }

    fn pass(&self, millis: u64) -> Step<'_, ()> {
        Box::pin(tokio::time::sleep(Duration::from_millis(millis)))
    }
}
