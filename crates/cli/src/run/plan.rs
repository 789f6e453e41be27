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
        // With `hold` there is time to stop politely even with a short ttl. Not so with `continue`:
        // whether it may go on is known only when its deadline is near.
        let certain = on_outage.withheld_millis();
        let grace = match config.lease.stop_grace {
            Some(grace) => grace.millis(),
            None => (ttl.millis() / 6 + certain / 6).min(10_000),
        };
        let margin = config
            .lease
            .margin
            .map_or(Margin::of(ttl).millis(), Period::millis);
        let look = (ttl.millis() / 30).clamp(5, 500);
        let trusted = ttl.millis() - margin;
        let renewal = ttl.millis() / 3;
        // However long the grace: the program must not be asked to stop while renewals go as planned,
        // and with `continue` not before the others were asked and their answer was looked at: that is at
        // half of the way from the missing renewal to the deadline, and a quarter more is for busy machines.
        let earliest = match on_outage {
            OnOutage::Continue(_) => renewal + trusted.saturating_sub(renewal) * 3 / 4 + look,
            OnOutage::FailClosed | OnOutage::Hold(_) => renewal + ttl.millis() / 6,
        };
        let most = (trusted + certain).saturating_sub(earliest + lead);
        Ok(Self {
            grace: grace.min(most),
            lead,
            look,
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
    use lease::Grace;

    use super::*;

    fn plan(ttl_ms: u64, on_outage: OnOutage) -> Plan {
        let mut config = Config::default();
        config.lease.ttl = Period::from_millis(ttl_ms);
        Plan::of(&config, on_outage).unwrap()
    }

    #[test]
    fn a_program_is_asked_early_enough_and_never_while_renewals_go_as_planned() {
        let minute = Grace::from_millis(60_000).unwrap();
        // Until the others were asked, `continue` stops where `fail_closed` does.
        let policies = [
            (OnOutage::FailClosed, 0),
            (OnOutage::Continue(minute), 0),
            (OnOutage::Hold(minute), 60_000),
        ];
        for ttl_ms in [200, 1_000, 3_000, 30_000, 3_600_000] {
            for (policy, certain_ms) in policies {
                let ttl = Ttl::from_millis(ttl_ms).unwrap();
                let stops_at = ttl_ms - Margin::of(ttl).millis() + certain_ms;
                let stops_at = BootMillis::new(stops_at);
                let (ask_at, kill_at) = plan(ttl_ms, policy).moments(stops_at);
                assert!(
                    ask_at < kill_at && kill_at < stops_at,
                    "{ttl_ms} {policy:?}"
                );
                assert!(
                    ask_at.get() >= ttl_ms / 3 + ttl_ms / 6,
                    "{ttl_ms} {policy:?}: {ask_at:?}"
                );
            }
        }
        let (ask_at, kill_at) = plan(30_000, OnOutage::FailClosed).moments(BootMillis::new(28_000));
        assert_eq!((ask_at.get(), kill_at.get()), (22_500, 27_500));
    }
}
