//! Pauses between attempts.

use lease::Clock;

/// Pauses that double from attempt to attempt, each shortened at random by up to a half, so that
/// many who failed together do not come back together.
#[derive(Clone, Debug)]
pub struct Backoff {
    first_ms: u64,
    most_ms: u64,
    attempts: u32,
}

impl Backoff {
    /// From the first pause to the longest.
    pub fn new(first_ms: u64, most_ms: u64) -> Self {
        Self {
            first_ms,
            most_ms,
            attempts: 0,
        }
    }

    /// How long to pause now.
    pub fn next_ms(&mut self) -> u64 {
        self.next_within_ms(u64::MAX)
    }

    /// How long to pause now where the longest pause depends on the moment. Pauses of that length, too, are
    /// shortened at random.
    pub fn next_within_ms(&mut self, most_ms: u64) -> u64 {
        let full = self
            .first_ms
            .saturating_mul(1 << self.attempts.min(20))
            .min(self.most_ms)
            .min(most_ms)
            .max(1);
        self.attempts = self.attempts.saturating_add(1);
        full - rand::random_range(0..=full / 2)
    }

    /// It worked: the next pause is the first one again.
    pub fn reset(&mut self) {
        self.attempts = 0;
    }

    /// Pauses on a clock. The future is on its own and can be kept.
    pub fn pause(&mut self, clock: &dyn Clock) -> impl Future<Output = ()> + Send + Unpin + use<> {
        clock.sleep_until(clock.boot().plus(self.next_ms()))
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

    #[test]
    fn many_who_pause_for_the_longest_time_do_not_come_back_together() {
        let mut backoff = Backoff::new(500, 30_000);
        for _ in 0..10 {
            backoff.next_within_ms(1_000);
        }
        let pauses: Vec<u64> = (0..1_000).map(|_| backoff.next_within_ms(1_000)).collect();
        assert!(pauses.iter().all(|it| (500..=1_000).contains(it)));
        for part in 0..10 {
            let within = 500 + part * 50..=550 + part * 50;
            let count = pauses.iter().filter(|it| within.contains(*it)).count();
            assert!((20..=250).contains(&count), "{count} of 1000 in {within:?}");
        }
    }
}
