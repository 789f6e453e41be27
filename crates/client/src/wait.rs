//! Waiting with a limit, and pausing between attempts, on an injected clock.

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

/// Pauses that double from attempt to attempt, each shortened at random by up to a half, so that
/// many who failed together do not come back together.
pub(crate) struct Backoff {
    first_ms: u64,
    most_ms: u64,
    attempts: u32,
}

impl Backoff {
    pub fn new(first_ms: u64, most_ms: u64) -> Self {
        Self {
            first_ms,
            most_ms,
            attempts: 0,
        }
    }

    pub fn next_ms(&mut self) -> u64 {
        let full = self
            .first_ms
            .saturating_mul(1 << self.attempts.min(20))
            .min(self.most_ms)
            .max(1);
        self.attempts = self.attempts.saturating_add(1);
        full - jitter(full / 2)
    }

    pub fn reset(&mut self) {
        self.attempts = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_stay_within_their_limit() {
        let mut backoff = Backoff::new(50, 400);
        for full in [50, 100, 200, 400, 400, 400] {
            let pause = backoff.next_ms();
            assert!((full / 2..=full).contains(&pause), "{pause} of {full}");
        }
        backoff.reset();
        assert!(backoff.next_ms() <= 50);
    }
}
