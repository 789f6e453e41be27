//! Settings of a coordinator, checked before anything starts.

use lease::{Invalid, Ttl};

/// How a coordinator behaves. Every interval is jittered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// How long a lease on a target lasts.
    pub lease_ttl_ms: u64,
    /// How often leases are renewed: at most a third of their ttl.
    pub renew_ms: u64,
    /// How long presence lasts.
    pub presence_ttl_ms: u64,
    /// How often presence is renewed: at most a third of its ttl.
    pub presence_ms: u64,
    /// How often targets, nodes and leases are read in full. Changes that the store announces are
    /// acted on immediately; this finds those that it does not.
    pub discovery_ms: u64,
    /// How long a free target is left to the instance that should have it, before anybody takes it.
    pub preference_wait_ms: u64,
    /// How long the set of nodes and targets must stand still before targets are handed over.
    pub settle_ms: u64,
    /// How many targets are handed over concurrently.
    pub moves_at_once: usize,
    /// How long a successor has to answer an offer, and to confirm after the commit.
    pub answer_ms: u64,
    /// How long running polls may take to end during a hand-over.
    pub drain_ms: u64,
    /// How long a stop takes at most, polls, releases and all. The last fifth is for releases alone:
    /// polls that still run then are broken off.
    pub stop_ms: u64,
    /// This instance's share relative to the others; zero takes nothing.
    pub weight: u32,
    /// The most targets that this instance owns.
    pub capacity: Option<u32>,
    /// A name for people. Never part of ownership.
    pub display_name: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            lease_ttl_ms: 30_000,
            renew_ms: 10_000,
            presence_ttl_ms: 30_000,
            presence_ms: 10_000,
            discovery_ms: 10_000,
            preference_wait_ms: 500,
            settle_ms: 1_000,
            moves_at_once: 32,
            answer_ms: 5_000,
            drain_ms: 10_000,
            stop_ms: 10_000,
            weight: 1,
            capacity: None,
            display_name: None,
        }
    }
}

impl Options {
    /// The shortest ttl: below it a busy machine loses leases by itself.
    pub const MIN_TTL_MS: u64 = 300;

    /// All times scaled down to this ttl, in the proportions of the defaults.
    pub fn with_ttl_ms(ttl_ms: u64) -> Self {
        let default = Self::default();
        let scale = |ms: u64| (ms * ttl_ms / default.lease_ttl_ms).max(10);
        Self {
            lease_ttl_ms: ttl_ms,
            renew_ms: ttl_ms / 3,
            presence_ttl_ms: ttl_ms,
            presence_ms: ttl_ms / 3,
            discovery_ms: ttl_ms / 3,
            preference_wait_ms: scale(default.preference_wait_ms).clamp(100, 500),
            settle_ms: scale(default.settle_ms).clamp(100, 1_000),
            answer_ms: scale(default.answer_ms).clamp(500, 5_000),
            drain_ms: scale(default.drain_ms).clamp(500, 10_000),
            stop_ms: scale(default.stop_ms).clamp(2_000, 10_000),
            ..default
        }
    }

    /// How long a free target is left to a foreign program that should have it: such a program hears
    /// no events and finds it by looking, as often as we do.
    pub(super) fn foreign_wait_ms(&self) -> u64 {
        (self.discovery_ms + self.discovery_ms / 5).max(self.preference_wait_ms)
    }

    /// Checks what would make a fleet misbehave.
    pub fn check(&self) -> Result<(), Invalid> {
        let ttls = [
            ("poll.lease.ttl", self.lease_ttl_ms),
            ("poll.lease.presence_ttl", self.presence_ttl_ms),
        ];
        for (field, ttl_ms) in ttls {
            if !(Self::MIN_TTL_MS..=Ttl::MAX_MILLIS).contains(&ttl_ms) {
                return Err(Invalid::new(field, "300 ms to 24 hours"));
            }
        }
        let renewals = [
            ("poll.lease.renew", self.renew_ms, self.lease_ttl_ms),
            (
                "poll.lease.presence",
                self.presence_ms,
                self.presence_ttl_ms,
            ),
        ];
        for (field, interval_ms, ttl_ms) in renewals {
            if interval_ms == 0 || interval_ms > ttl_ms / 3 {
                return Err(Invalid::new(
                    field,
                    "more than 0, at most a third of the ttl",
                ));
            }
        }
        let waits = [
            ("poll.lease.discovery", self.discovery_ms),
            ("poll.lease.preference_wait", self.preference_wait_ms),
            ("poll.lease.settle", self.settle_ms),
            ("poll.lease.answer", self.answer_ms),
            ("poll.lease.drain", self.drain_ms),
            ("poll.lease.stop", self.stop_ms),
        ];
        for (field, wait_ms) in waits {
            if wait_ms == 0 || wait_ms > Ttl::MAX_MILLIS {
                return Err(Invalid::new(field, "more than 0, at most 24 hours"));
            }
        }
        if self.moves_at_once == 0 || self.moves_at_once > 1_000 {
            return Err(Invalid::new("poll.lease.moves_at_once", "1 to 1,000"));
        }
        if self.weight > 1_000_000 {
            return Err(Invalid::new("poll.lease.weight", "at most 1,000,000"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_the_contract_and_valid() {
        let options = Options::default();
        assert_eq!(options.check(), Ok(()));
        assert_eq!(options, Options::with_ttl_ms(30_000));
        assert_eq!(Options::with_ttl_ms(900).check(), Ok(()));
    }

    #[test]
    fn a_renewal_later_than_a_third_of_the_ttl_is_refused_by_name() {
        let late = Options {
            renew_ms: 10_001,
            ..Options::default()
        };
        assert_eq!(
            late.check().map_err(|wrong| wrong.field),
            Err("poll.lease.renew")
        );
        let absent = Options {
            presence_ms: 0,
            ..Options::default()
        };
        assert_eq!(
            absent.check().map_err(|wrong| wrong.field),
            Err("poll.lease.presence")
        );
    }
}
