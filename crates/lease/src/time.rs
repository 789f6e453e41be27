//! Time as values, and the one trait through which it comes in. The kernel never reads a clock.

use std::{fmt, future::Future, pin::Pin};

use serde::{Deserialize, Serialize};

use crate::Invalid;

/// A moment on the authority's clock: milliseconds since 1970, UTC.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct UnixMillis(u64);

impl UnixMillis {
    /// Wraps a count of milliseconds since 1970.
    pub const fn new(millis: u64) -> Self {
        Self(millis)
    }

    /// Milliseconds since 1970.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// This moment and `millis` more.
    #[must_use]
    pub const fn plus(self, millis: u64) -> Self {
        Self(self.0.saturating_add(millis))
    }

    /// How many milliseconds lie between `earlier` and this moment; 0 when it is not earlier.
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for UnixMillis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// A moment on a holder's own clock: milliseconds since some fixed point, counting on while the
/// machine sleeps (L10). Never compared between machines.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct BootMillis(u64);

impl BootMillis {
    /// Wraps a count of milliseconds.
    pub const fn new(millis: u64) -> Self {
        Self(millis)
    }

    /// The count of milliseconds.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// This moment and `millis` more.
    #[must_use]
    pub const fn plus(self, millis: u64) -> Self {
        Self(self.0.saturating_add(millis))
    }

    /// How many milliseconds lie between `earlier` and this moment; 0 when it is not earlier.
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Where time comes from. Everything that waits or measures is given one of these, so that tests
/// and the simulator decide what time it is.
pub trait Clock: Send + Sync + 'static {
    /// Wall-clock time. May jump; good for showing and for the authority's anchor.
    fn unix(&self) -> UnixMillis;
    /// Wall-clock time in nanoseconds since 1970, as fine as this clock knows it: for names that must
    /// never come twice.
    fn unix_nanos(&self) -> u128 {
        u128::from(self.unix().get()) * 1_000_000
    }
    /// Time that never jumps and counts while the machine sleeps.
    fn boot(&self) -> BootMillis;
    /// Resolves when [`Clock::boot`] has reached `at`.
    fn sleep_until(&self, at: BootMillis) -> Pin<Box<dyn Future<Output = ()> + Send + 'static>>;
}

/// How long a grant or a renewal lasts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Ttl(u32);

impl Ttl {
    /// The longest ttl: a day.
    pub const MAX_MILLIS: u64 = 86_400_000;

    /// Checks the range: 1 ms to a day.
    pub const fn from_millis(millis: u64) -> Result<Self, Invalid> {
        if millis == 0 || millis > Self::MAX_MILLIS {
            return Err(Invalid::new("ttl", "more than 0 and at most 24 hours"));
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "checked against MAX_MILLIS"
        )]
        Ok(Self(millis as u32))
    }

    /// Whole seconds.
    pub const fn from_secs(seconds: u64) -> Result<Self, Invalid> {
        Self::from_millis(seconds.saturating_mul(1000))
    }

    /// Milliseconds.
    pub const fn millis(self) -> u64 {
        self.0 as u64
    }
}

impl TryFrom<u64> for Ttl {
    type Error = Invalid;
    fn try_from(millis: u64) -> Result<Self, Self::Error> {
        Self::from_millis(millis)
    }
}

impl From<Ttl> for u64 {
    fn from(ttl: Ttl) -> Self {
        ttl.millis()
    }
}
