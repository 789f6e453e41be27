//! How much the server takes on at once, how large, and for how long.

use serde::{Deserialize, Serialize};

use super::{Period, wrong};
use crate::exit::Failure;

/// Limits of `leasehold serve`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Renewals, heartbeats and releases at the same time.
    pub keeps: usize,
    /// Acquires at the same time that do not wait: at most as many as `keeps`. 0 gives nothing out
    /// any more, while everything held can be kept.
    pub acquires: usize,
    /// Acquires that wait in a queue.
    pub waiters: usize,
    /// Reads and other writes at the same time.
    pub others: usize,
    /// Open streams.
    pub streams: usize,
    /// Open connections; at most what the process may have open.
    pub connections: usize,
    /// Open connections from one address that is no trusted proxy.
    pub connections_per_address: usize,
    /// Acquires per second and token; no limit by default.
    pub acquires_per_second: Option<u32>,
    /// How many acquires may come at once before that rate counts.
    pub acquire_burst: Option<u32>,
    /// The largest body of a request, in bytes.
    pub body_bytes: usize,
    /// How long one request may take; waits come on top.
    pub request_timeout: Period,
    /// How long an orderly stop waits for open requests.
    pub shutdown: Period,
    /// How often an idle stream shows that it is alive.
    pub stream_heartbeat: Period,
    /// How long a holder whose connection was closed without a goodbye has to connect again before it
    /// counts as dead.
    pub death_linger: Period,
}

impl Default for Limits {
    fn default() -> Self {
        let limits = leasehold_server::Limits::default();
        Self {
            keeps: limits.keeps,
            acquires: limits.acquires,
            waiters: limits.waiters,
            others: limits.others,
            streams: limits.streams,
            connections: limits.connections,
            connections_per_address: limits.connections_per_address,
            acquires_per_second: limits.acquires_per_second,
            acquire_burst: limits.acquire_burst,
            body_bytes: limits.body_bytes,
            request_timeout: Period::from_millis(limits.request_timeout_ms),
            shutdown: Period::from_millis(limits.shutdown_ms),
            stream_heartbeat: Period::from_millis(limits.stream_heartbeat_ms),
            death_linger: Period::from_millis(limits.death_linger_ms),
        }
    }
}

impl Limits {
    /// As the server takes them. What cannot work is refused with the name of the setting.
    pub fn checked(&self) -> Result<leasehold_server::Limits, Failure> {
        let limits = leasehold_server::Limits {
            keeps: self.keeps,
            acquires: self.acquires,
            waiters: self.waiters,
            others: self.others,
            streams: self.streams,
            connections: self.connections,
            connections_per_address: self.connections_per_address,
            acquires_per_second: self.acquires_per_second,
            acquire_burst: self.acquire_burst,
            body_bytes: self.body_bytes,
            request_timeout_ms: self.request_timeout.millis(),
            shutdown_ms: self.shutdown.millis(),
            stream_heartbeat_ms: self.stream_heartbeat.millis(),
            death_linger_ms: self.death_linger.millis(),
        };
        limits
            .check()
            .map_err(|invalid| wrong(format!("server.{invalid}")))?;
        Ok(limits)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;

    fn read(text: &str) -> Config {
        serde_saphyr::from_str(text).unwrap()
    }

    #[test]
    fn limits_are_read_shown_and_checked() {
        let config = read("server: {limits: {keeps: 20, acquires: 10, request_timeout: 1500ms}}");
        let limits = config.server.limits.checked().unwrap();
        assert_eq!(
            (limits.keeps, limits.acquires, limits.request_timeout_ms),
            (20, 10, 1_500)
        );
        let shown = serde_saphyr::to_string(&config).unwrap();
        assert!(shown.contains("acquires: 10"), "{shown}");
        let again: Config = serde_saphyr::from_str(&shown).unwrap();
        assert_eq!(again.server.limits.checked().unwrap().keeps, 20);
        let config = read("server: {limits: {keeps: 5, acquires: 10}}");
        insta::assert_snapshot!(config.server.limits.checked().unwrap_err(), @"error: server.limits.keeps: expected at least as many as limits.acquires: who holds a lease must be able to keep it");
        let config = read("server: {limits: {request_timeout: 11m}}");
        insta::assert_snapshot!(config.server.limits.checked().unwrap_err(), @"error: server.limits.request_timeout: expected more than 0, at most 10 minutes");
    }
}
