//! When a worker that crashed is started again, and when it is given up.

use leasehold_clock::Backoff;

/// How many quick crashes in a row end the attempts.
pub const QUICK_CRASHES: u32 = 5;
/// The pause after the second quick crash; it doubles from there. The first restart is immediate.
const FIRST_PAUSE_MS: u64 = 250;
/// The longest pause.
const LONGEST_PAUSE_MS: u64 = 10_000;

/// What to do about a crash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Start it again after so many milliseconds.
    Restart {
        /// How long to wait.
        after_ms: u64,
    },
    /// It does not work here: its cameras go back to the pool, so that another runner can try.
    GiveUp,
}

/// Counts the quick crashes of one worker.
#[derive(Clone, Debug)]
pub struct Breaker {
    quick: u32,
    pauses: Backoff,
}

impl Default for Breaker {
    fn default() -> Self {
        Self {
            quick: 0,
            pauses: Backoff::new(FIRST_PAUSE_MS, LONGEST_PAUSE_MS),
        }
    }
}

impl Breaker {
    /// A worker ended unasked after so long; less than `quick_ms` is quick.
    pub fn crashed(&mut self, lived_ms: u64, quick_ms: u64) -> Verdict {
        if lived_ms >= quick_ms {
            self.reset();
        }
        self.quick += 1;
        if self.quick >= QUICK_CRASHES {
            self.reset();
            return Verdict::GiveUp;
        }
        let after_ms = match self.quick {
            1 => 0,
            _ => self.pauses.next_ms(),
        };
        Verdict::Restart { after_ms }
    }

    /// Crashes in a row so far.
    pub fn crashes(&self) -> u32 {
        self.quick
    }

    /// Other cameras, another command: a new chance.
    pub fn reset(&mut self) {
        self.quick = 0;
        self.pauses.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_quick_crashes_give_up_and_a_long_life_forgives() {
        let mut breaker = Breaker::default();
        for full_ms in [0, 250, 500, 1000] {
            let Verdict::Restart { after_ms } = breaker.crashed(10, 1000) else {
                panic!("it is started again")
            };
            assert!(
                (full_ms / 2..=full_ms).contains(&after_ms),
                "{after_ms} of {full_ms}"
            );
        }
        assert_eq!(breaker.crashed(10, 1000), Verdict::GiveUp);
        for _ in 0..20 {
            assert_eq!(
                breaker.crashed(1000, 1000),
                Verdict::Restart { after_ms: 0 },
                "it lived long enough"
            );
        }
    }
}
