//! When a target is polled next, and when it is only probed.

use std::time::Duration;

/// Failures in a row after which a target is only probed.
pub(super) const FAILURES_BEFORE_PROBES: u32 = 5;
/// The longest time between two probes.
const LONGEST_PROBE_PAUSE: Duration = Duration::from_secs(120);

/// The pace of one target.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    interval: Duration,
    failures: u32,
}

impl Pace {
    pub fn new(interval: Duration) -> Self {
        Self {
            interval,
            failures: 0,
        }
    }

    /// The target's document may have been changed.
    pub fn set_interval(&mut self, interval: Duration) {
        self.interval = interval;
    }

    /// Whether the next request is a light probe.
    pub fn probes(&self) -> bool {
        self.failures >= FAILURES_BEFORE_PROBES
    }

    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Notes how a request went. True when a probe succeeded: the real poll follows immediately.
    pub fn note(&mut self, success: bool) -> bool {
        let recovered = success && self.probes();
        self.failures = if success {
            0
        } else {
            self.failures.saturating_add(1)
        };
        recovered
    }

    /// How long after the beginning of the last request the next one begins. Each failed probe
    /// doubles it.
    pub fn pause(&self) -> Duration {
        let doublings = self.failures.saturating_sub(FAILURES_BEFORE_PROBES - 1);
        let longest = LONGEST_PROBE_PAUSE.max(self.interval);
        let pause = self
            .interval
            .saturating_mul(1 << doublings.min(16))
            .min(longest);
        jittered(pause)
    }
}

/// A tenth less or more, at random, so that targets that were taken together are not polled together.
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(rand::random_range(0.9..=1.1))
}

/// A first poll comes soon, but not with all others.
pub(super) fn first_pause(interval: Duration) -> Duration {
    let most = (interval / 10).min(Duration::from_millis(200));
    most.mul_f64(rand::random_range(0.0..=1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_failures_lead_to_probes_that_become_rare_and_one_success_ends_them() {
        let mut pace = Pace::new(Duration::from_secs(10));
        for _ in 0..4 {
            assert!(!pace.note(false));
            assert!(!pace.probes());
            assert!(pace.pause() <= Duration::from_secs(11));
        }
        pace.note(false);
        assert!(pace.probes());
        assert!(pace.pause() >= Duration::from_secs(18));
        for _ in 0..100 {
            pace.note(false);
        }
        assert!(pace.pause() <= Duration::from_secs(132));
        assert!(pace.note(true), "the real poll follows immediately");
        assert!(!pace.probes());
        assert!(!pace.note(true));
    }
}
