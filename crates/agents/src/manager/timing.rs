//! The distances between a lease's deadline and what must have happened before it.

use lease::{BootMillis, Ttl};

/// Distances to the moment at which work must have stopped, in milliseconds. Together a tenth of the
/// ttl: with the policy `continue` the other managers have been asked, and have answered, before the
/// first of them (L13).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    /// From asking the worker to drop the camera to asking the whole tree to end.
    take_away: u64,
    /// From SIGTERM to SIGKILL.
    terminate: u64,
    /// From SIGKILL to the deadline: a killed tree needs a moment to be gone.
    lead: u64,
    /// How often deadlines are looked at, so that the guardian knows of renewals soon.
    look: u64,
}

impl Timing {
    /// Fits a ttl.
    pub fn of(ttl: Ttl) -> Self {
        let ttl = ttl.millis();
        Self {
            take_away: (ttl / 25).clamp(1, 2_500),
            terminate: (ttl / 25).clamp(1, 2_500),
            lead: (ttl / 50).clamp(5, 500),
            look: (ttl / 60).clamp(10, 250),
        }
    }

    /// How often deadlines are looked at.
    pub fn look_ms(self) -> u64 {
        self.look
    }

    /// When a camera is taken from its worker if its lease is not renewed before.
    pub fn take_away_at(self, stops_at: BootMillis) -> BootMillis {
        let before = self.take_away + self.terminate + self.lead;
        BootMillis::new(stops_at.get().saturating_sub(before))
    }

    /// When the worker's whole tree is asked to end, and when it is killed.
    pub fn stop_at(self, stops_at: BootMillis) -> (BootMillis, BootMillis) {
        let kill = stops_at.get().saturating_sub(self.lead);
        let ask = kill.saturating_sub(self.terminate);
        (BootMillis::new(ask), BootMillis::new(kill))
    }
}

#[cfg(test)]
mod tests {
    use lease::Margin;

    use super::*;

    #[test]
    fn the_steps_come_in_order_and_after_the_peers_were_asked() {
        for ttl_ms in [1_000, 2_000, 5_000, 60_000, 3_600_000] {
            let timing = Timing::of(Ttl::from_millis(ttl_ms).unwrap());
            let stops_at = BootMillis::new(10_000_000);
            let away = timing.take_away_at(stops_at);
            let (ask, kill) = timing.stop_at(stops_at);
            assert!(
                away < ask && ask < kill && kill < stops_at,
                "{ttl_ms}: {timing:?}"
            );
            // Peers have answered half-way between the missing renewal and the deadline; as long again is
            // for busy machines.
            let ttl = Ttl::from_millis(ttl_ms).unwrap();
            let half = (ttl_ms - Margin::of(ttl).millis() - ttl_ms / 3) / 2;
            assert!(stops_at.since(away) * 2 <= half, "{ttl_ms}");
        }
    }
}
