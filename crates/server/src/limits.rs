//! Limits of the server: how much simultaneously, how large, how long.

use std::time::Duration;

use lease::Invalid;
use leasehold_api::{config::Period, section};

/// The body limit's range: the smallest still holds a request with its labels, the largest does not
/// yet endanger a small machine.
const BODY_BYTES: std::ops::RangeInclusive<usize> = 1024..=64 * 1024 * 1024;
/// More places than this are no limit any more, and each may cost a connection and its buffers.
const MAX_PLACES: usize = 1_000_000;
/// A request that takes longer than this has lost its caller.
const MAX_REQUEST_MS: u64 = 600_000;
/// A death that is known so late is no better than a ttl.
const MAX_LINGER_MS: u64 = 60_000;

section! {
    /// How much the server takes on at the same time, how large, and for how long. Each default suits one
    /// machine.
    pub struct Limits {
        /// Renewals, heartbeats and releases at the same time.
        keeps: usize = 8192,
        /// Acquires at the same time that do not wait: at most as many as `keeps`, so that a holder
        /// can always keep its lease. 0 grants nothing any more, while everything held can be kept.
        acquires: usize = 1024,
        /// Acquires that wait in a queue.
        waiters: usize = 16_384,
        /// Reads and other writes at the same time.
        others: usize = 1024,
        /// Open streams.
        streams: usize = 16_384,
        /// Open connections; fewer if the process may not have that many files open.
        connections: usize = 32_768,
        /// Open connections from one address that is no trusted proxy: fewer than `connections`, so that
        /// one address alone cannot keep everybody out.
        connections_per_address: usize = 20_000,
        /// Acquires per second and credential; no limit if not set.
        acquires_per_second: Option<u32> = None,
        /// How many acquires may come together before that rate counts.
        acquire_burst: Option<u32> = None,
        /// The largest body of a request, in bytes. The interface of `leasehold`'s own agents takes at
        /// least 8 MiB.
        body_bytes: usize = 1024 * 1024,
        /// How long one request may take; waits come on top. A body must have arrived by then.
        request_timeout: Period = Period::whole(10),
        /// How long a graceful stop waits for open requests.
        shutdown: Period = Period::whole(10),
        /// How often an idle stream shows that it is alive.
        stream_heartbeat: Period = Period::whole(10),
        /// How long a holder whose connection was closed without a goodbye has to connect again before it
        /// counts as dead (L15).
        death_linger: Period = Period::from_millis(250),
    }
}

impl Limits {
    /// Refuses what cannot work, with the setting that is wrong.
    pub fn check(&self) -> Result<(), Invalid> {
        let places = [
            ("limits.keeps", self.keeps, 1),
            ("limits.acquires", self.acquires, 0),
            ("limits.waiters", self.waiters, 0),
            ("limits.others", self.others, 1),
            ("limits.streams", self.streams, 0),
            ("limits.connections", self.connections, 1),
            (
                "limits.connections_per_address",
                self.connections_per_address,
                1,
            ),
        ];
        for (field, value, least) in places {
            if value < least || value > MAX_PLACES {
                let expected = match least {
                    0 => "0 to 1,000,000",
                    _ => "1 to 1,000,000",
                };
                return Err(Invalid::new(field, expected));
            }
        }
        if self.keeps < self.acquires {
            return Err(Invalid::new(
                "limits.keeps",
                "at least as many as limits.acquires: who holds a lease must be able to keep it",
            ));
        }
        if self.acquires_per_second == Some(0) {
            return Err(Invalid::new("limits.acquires_per_second", "at least 1"));
        }
        if self.acquire_burst.is_some() && self.acquires_per_second.is_none() {
            return Err(Invalid::new(
                "limits.acquire_burst",
                "limits.acquires_per_second beside it",
            ));
        }
        if self.acquire_burst == Some(0) {
            return Err(Invalid::new("limits.acquire_burst", "at least 1"));
        }
        if !BODY_BYTES.contains(&self.body_bytes) {
            return Err(Invalid::new("limits.body_bytes", "1024 to 67108864"));
        }
        if !(1..=MAX_REQUEST_MS).contains(&self.request_timeout.millis()) {
            return Err(Invalid::new(
                "limits.request_timeout",
                "more than 0, at most 10 minutes",
            ));
        }
        if self.shutdown.millis() > MAX_REQUEST_MS {
            return Err(Invalid::new("limits.shutdown", "at most 10 minutes"));
        }
        if !(10..=MAX_REQUEST_MS).contains(&self.stream_heartbeat.millis()) {
            return Err(Invalid::new(
                "limits.stream_heartbeat",
                "10 ms to 10 minutes",
            ));
        }
        if self.death_linger.millis() > MAX_LINGER_MS {
            return Err(Invalid::new("limits.death_linger", "at most a minute"));
        }
        Ok(())
    }

    pub(crate) fn request_timeout(&self) -> Duration {
        self.request_timeout.duration()
    }

    pub(crate) fn shutdown(&self) -> Duration {
        self.shutdown.duration()
    }

    pub(crate) fn stream_heartbeat(&self) -> Duration {
        self.stream_heartbeat.duration()
    }

    pub(crate) fn death_linger(&self) -> Duration {
        self.death_linger.duration()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_work_is_named() {
        let wrong = |change: fn(&mut Limits)| {
            let mut limits = Limits::default();
            change(&mut limits);
            limits.check().map_err(|invalid| invalid.field)
        };
        assert_eq!(wrong(|_| {}), Ok(()));
        assert_eq!(wrong(|it| it.acquires = 0), Ok(()));
        assert_eq!(wrong(|it| it.keeps = 0), Err("limits.keeps"));
        assert_eq!(wrong(|it| it.acquires = 10_000), Err("limits.keeps"));
        assert_eq!(wrong(|it| it.others = 0), Err("limits.others"));
        assert_eq!(wrong(|it| it.streams = 1_000_001), Err("limits.streams"));
        assert_eq!(
            wrong(|it| it.acquires_per_second = Some(0)),
            Err("limits.acquires_per_second")
        );
        assert_eq!(
            wrong(|it| it.acquire_burst = Some(3)),
            Err("limits.acquire_burst")
        );
        assert_eq!(wrong(|it| it.body_bytes = 10), Err("limits.body_bytes"));
        assert_eq!(
            wrong(|it| it.request_timeout = Period::whole(0)),
            Err("limits.request_timeout")
        );
        assert_eq!(
            wrong(|it| it.shutdown = Period::from_millis(600_001)),
            Err("limits.shutdown")
        );
        assert_eq!(
            wrong(|it| it.stream_heartbeat = Period::from_millis(1)),
            Err("limits.stream_heartbeat")
        );
        assert_eq!(wrong(|it| it.death_linger = Period::whole(0)), Ok(()));
        assert_eq!(
            wrong(|it| it.death_linger = Period::from_millis(60_001)),
            Err("limits.death_linger")
        );
    }
}
