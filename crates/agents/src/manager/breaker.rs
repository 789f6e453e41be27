//! When a worker that crashed is started again, and when it is given up.

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
#[derive(Clone, Copy, Default, Debug)]
pub struct Breaker {
    quick: u32,
}

impl Breaker {
    /// A worker ended unasked after so long; less than `quick_ms` is quick.
    pub fn crashed(&mut self, lived_ms: u64, quick_ms: u64) -> Verdict {
        if lived_ms >= quick_ms {
            self.quick = 0;
        }
        self.quick += 1;
        if self.quick >= QUICK_CRASHES {
            self.quick = 0;
            return Verdict::GiveUp;
        }
        let after_ms = match self.quick {
            1 => 0,
            nth => (FIRST_PAUSE_MS << (nth - 2)).min(LONGEST_PAUSE_MS),
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_quick_crashes_give_up_and_a_long_life_forgives() {
        let mut breaker = Breaker::default();
        let restarts = [0, 250, 500, 1000];
        for after_ms in restarts {
            assert_eq!(breaker.crashed(10, 1000), Verdict::Restart { after_ms });
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
