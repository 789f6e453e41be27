//! Leaves a server alone for a while after it failed several times in a row.

use std::sync::{Arc, Mutex, PoisonError};

use lease::{BootMillis, Clock};

use crate::Error;

/// How many failures in a row open it.
const FAILURES: u32 = 5;
/// How long it stays open before one call may try.
const OPEN_MS: u64 = 2000;

#[derive(Default)]
struct State {
    failures: u32,
    /// No calls before this time; then one at a time.
    closed_until: Option<BootMillis>,
    trying: bool,
}

pub(super) struct Breaker {
    // Held for a few instructions, never over a call.
    state: Mutex<State>,
    clock: Arc<dyn Clock>,
}

/// The right to make one call. A call that is given up counts as neither.
pub(super) struct Pass<'a> {
    breaker: &'a Breaker,
    trial: bool,
    reported: bool,
}

impl Breaker {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            state: Mutex::default(),
            clock,
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn enter(&self) -> Result<Pass<'_>, Error> {
        let mut state = self.state();
        let trial = match state.closed_until {
            None => false,
            Some(until) if self.clock.boot() >= until && !state.trying => {
                state.trying = true;
                true
            }
            Some(_) => {
                return Err(Error::Unavailable(
                    "it failed several times in a row; not asked again yet".into(),
                ));
            }
        };
        Ok(Pass {
            breaker: self,
            trial,
            reported: false,
        })
    }
}

impl Pass<'_> {
    /// Says whether the server answered, whatever it answered.
    pub fn done(mut self, reached: bool) {
        self.reported = true;
        let now = self.breaker.clock.boot();
        let mut state = self.breaker.state();
        state.trying &= !self.trial;
        if reached {
            *state = State::default();
            return;
        }
        state.failures = state.failures.saturating_add(1);
        if state.failures >= FAILURES {
            state.closed_until = Some(now.plus(OPEN_MS));
        }
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        if self.trial && !self.reported {
            self.breaker.state().trying = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lease::UnixMillis;
    use leasehold_clock::Manual;

    #[test]
    fn five_failures_open_it_and_one_success_closes_it() {
        let clock = Manual::new(UnixMillis::new(0));
        let breaker = Breaker::new(Arc::new(clock.clone()));
        for _ in 0..FAILURES {
            breaker.enter().unwrap().done(false);
        }
        assert!(breaker.enter().is_err());
        clock.advance(OPEN_MS);
        let trial = breaker.enter().unwrap();
        assert!(breaker.enter().is_err(), "one at a time");
        drop(trial);
        breaker.enter().unwrap().done(false);
        assert!(breaker.enter().is_err());
        clock.advance(OPEN_MS);
        breaker.enter().unwrap().done(true);
        breaker.enter().unwrap().done(false);
        assert!(breaker.enter().is_ok());
    }
}
