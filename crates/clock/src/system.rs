//! The machine's clocks.

use std::{
    future::Future,
    pin::Pin,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use lease::{BootMillis, Clock, UnixMillis};
use nix::time::{ClockId, clock_gettime};

/// Counts on while the machine sleeps (L10). On macOS that is `CLOCK_MONOTONIC`.
#[cfg(any(target_os = "linux", target_os = "android"))]
const BOOT: ClockId = ClockId::CLOCK_BOOTTIME;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const BOOT: ClockId = ClockId::CLOCK_MONOTONIC;

/// The machine's clocks: the wall clock, and the one that counts on while the machine sleeps.
#[derive(Clone, Copy, Debug, Default)]
pub struct System;

impl Clock for System {
    fn unix(&self) -> UnixMillis {
        UnixMillis::new(millis(since_1970()))
    }

    fn unix_nanos(&self) -> u128 {
        since_1970().as_nanos()
    }

    fn boot(&self) -> BootMillis {
        let time = clock_gettime(BOOT).expect("Linux since 2.6.39 and macOS since 10.12 have it");
        BootMillis::new(millis(Duration::from(time)))
    }

    fn sleep_until(&self, at: BootMillis) -> Pin<Box<dyn Future<Output = ()> + Send + 'static>> {
        let clock = *self;
        Box::pin(async move {
            // The runtime's timer stops while the machine sleeps, so look again after each wait, and
            // at least once a second.
            loop {
                let left = at.since(clock.boot());
                if left == 0 {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(left.min(1000))).await;
            }
        })
    }
}

fn since_1970() -> Duration {
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that reads the wall clock"
    )]
    let now = SystemTime::now();
    now.duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nanoseconds_are_finer_than_the_milliseconds_they_agree_with() {
        let before = System.unix().get();
        let seen: Vec<u128> = (0..100).map(|_| System.unix_nanos()).collect();
        let after = System.unix().get();
        let range = u128::from(before) * 1_000_000..u128::from(after + 1) * 1_000_000;
        assert!(seen.iter().all(|nanos| range.contains(nanos)), "{seen:?}");
        assert!(seen.iter().any(|nanos| nanos % 1_000_000 != 0), "{seen:?}");
    }
}
