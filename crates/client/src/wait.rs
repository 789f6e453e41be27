//! Waiting with a limit on an injected clock.

use std::future::Future;

use lease::Clock;

/// The outcome of `call`, or `None` when it took longer than `limit_ms`. The call is dropped then.
pub(crate) async fn limited<T>(
    clock: &dyn Clock,
    limit_ms: u64,
    call: impl Future<Output = T>,
) -> Option<T> {
    let limit = clock.sleep_until(clock.boot().plus(limit_ms));
    tokio::select! {
        biased;
        outcome = call => Some(outcome),
        () = limit => None,
    }
}

/// A random number from 0 to `most`.
pub(crate) fn jitter(most: u64) -> u64 {
    if most == 0 {
        return 0;
    }
    rand::random_range(0..=most)
}
