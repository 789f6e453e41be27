//! When a program is asked to end and when it is killed, counted back from the holder's deadline.

use std::time::Duration;

use lease::{BootMillis, Invalid, Margin, OnOutage, Ttl};

use crate::config::{Config, Period};

/// The distances to the deadline, in milliseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// From SIGTERM to SIGKILL.
    grace: u64,
    /// From SIGKILL to the deadline: a killed tree needs a moment to be gone.
    lead: u64,
    /// How often the deadline is looked at, so that the guardian hears of renewals soon.
    look: u64,
}

impl Plan {
    /// Fits a ttl.
    pub fn of(config: &Config, on_outage: OnOutage) -> Result<Self, Invalid> {
        let ttl = Ttl::from_millis(config.lease.ttl.millis())?;
        let lead = (ttl.millis() / 20).clamp(10, 500).min(ttl.millis() / 4);
        // With a grace there is time to stop politely even with a short ttl.
        let grace = match config.lease.stop_grace {
            Some(grace) => grace.millis(),
            None => (ttl.millis() / 6 + on_outage.grace_millis() / 6).min(10_000),
        };
        let margin = config
            .lease
            .margin
            .map_or(Margin::of(ttl).millis(), Period::millis);
        // However long the grace: the program must not be asked to stop while renewals go as planned.
        let most = (ttl.millis() - margin + on_outage.grace_millis())
            .saturating_sub(ttl.millis() / 3 + ttl.millis() / 6 + lead);
        Ok(Self {
            grace: grace.min(most),
            lead,
            look: (ttl.millis() / 30).clamp(5, 500),
        })
    }

    /// When to ask and when to kill, so that all is over at `stops_at`.
    pub fn moments(self, stops_at: BootMillis) -> (BootMillis, BootMillis) {
        let kill_at = stops_at.get().saturating_sub(self.lead);
        let ask_at = kill_at.saturating_sub(self.grace);
        (BootMillis::new(ask_at), BootMillis::new(kill_at))
    }

    /// How often the deadline is looked at.
    pub fn look_every(self) -> Duration {
        Duration::from_millis(self.look)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(ttl_ms: u64) -> Plan {
        let mut config = Config::default();
        config.lease.ttl = Period::from_millis(ttl_ms);
        Plan::of(&config, OnOutage::FailClosed).unwrap()
    }

    #[test]
    fn a_program_is_asked_early_enough_and_never_while_renewals_go_as_planned() {
        for ttl_ms in [200, 1_000, 3_000, 30_000, 3_600_000] {
            let ttl = Ttl::from_millis(ttl_ms).unwrap();
            let stops_at = BootMillis::new(ttl_ms - Margin::of(ttl).millis());
            let (ask_at, kill_at) = plan(ttl_ms).moments(stops_at);
            assert!(ask_at < kill_at && kill_at < stops_at, "{ttl_ms}");
            assert!(
                ask_at.get() >= ttl_ms / 3 + ttl_ms / 6,
                "{ttl_ms}: {ask_at:?}"
            );
        }
        let (ask_at, kill_at) = plan(30_000).moments(BootMillis::new(28_000));
        assert_eq!((ask_at.get(), kill_at.get()), (22_500, 27_500));
    }
}
