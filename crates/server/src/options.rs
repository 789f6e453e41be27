//! Settings of the server, readable from a configuration file. Unknown names are errors.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use secrecy::SecretString;
use serde::Deserialize;

use crate::{auth::TokenSpec, doors::v3::SessionOptions};

/// Settings of the server.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// Where to listen.
    pub listen: SocketAddr,
    /// Allow a non-loopback address without TLS.
    pub insecure_listen: bool,
    /// Encrypt connections.
    pub tls: Option<TlsOptions>,
    /// Where tokens and the development certificate are kept.
    pub data_dir: Option<PathBuf>,
    /// Tokens beside those in the data folder.
    pub tokens: Vec<TokenSpec>,
    /// Let only these networks in.
    pub lan_guard: Option<GuardOptions>,
    /// Proxies whose `X-Forwarded-For` is believed: networks or addresses.
    pub trusted_proxies: Vec<String>,
    /// Publish every event to this RabbitMQ: `amqp://user:password@host:5672/vhost`.
    pub amqp: Option<SecretString>,
    /// Limits.
    pub limits: Limits,
    /// Sessions.
    pub sessions: SessionOptions,
}

impl Options {
    /// The port that a server listens on when nothing is said.
    pub const DEFAULT_PORT: u16 = 7420;
}

impl Default for Options {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], Self::DEFAULT_PORT)),
            insecure_listen: false,
            tls: None,
            data_dir: None,
            tokens: Vec::new(),
            lan_guard: None,
            trusted_proxies: Vec::new(),
            amqp: None,
            limits: Limits::default(),
            sessions: SessionOptions::default(),
        }
    }
}

/// How connections are encrypted: with a certificate of one's own, or with a generated one.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TlsOptions {
    /// The certificate chain, PEM.
    pub cert: Option<PathBuf>,
    /// Its private key, PEM.
    pub key: Option<PathBuf>,
    /// Make a certificate for development and keep it in the data folder.
    pub development: bool,
    /// Further host names for the development certificate, beside `localhost` and the loopback
    /// addresses.
    pub names: Vec<String>,
}

/// Which networks may talk to the server at all.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GuardOptions {
    /// Networks or addresses; the private and loopback ranges of IPv4 and IPv6 when absent.
    pub allow: Option<Vec<String>>,
}

/// Limits, each with a default that suits one machine.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Renewals, heartbeats and releases at the same time.
    pub keeps: usize,
    /// Acquires at the same time that do not wait. Far below `keeps`, so that whoever holds a lease
    /// can always keep it.
    pub acquires: usize,
    /// Acquires that wait in a queue.
    pub waiters: usize,
    /// Reads and other writes at the same time.
    pub others: usize,
    /// Open streams.
    pub streams: usize,
    /// Acquires per second and token; `None` means no limit.
    pub acquires_per_second: Option<u32>,
    /// How many acquires may come at once before the rate counts.
    pub acquire_burst: Option<u32>,
    /// How long one request may take, in ms; waits come on top.
    pub request_timeout_ms: u64,
    /// How long the server waits for open requests when it stops, in ms.
    pub shutdown_ms: u64,
    /// How often an idle stream shows that it is alive, in ms.
    pub stream_heartbeat_ms: u64,
}

impl Limits {
    pub(crate) fn request_timeout(&self) -> Duration {
        Duration::from_millis(self.request_timeout_ms)
    }

    pub(crate) fn shutdown(&self) -> Duration {
        Duration::from_millis(self.shutdown_ms)
    }

    pub(crate) fn stream_heartbeat(&self) -> Duration {
        Duration::from_millis(self.stream_heartbeat_ms)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            keeps: 8192,
            acquires: 1024,
            waiters: 16_384,
            others: 1024,
            streams: 16_384,
            acquires_per_second: None,
            acquire_burst: None,
            request_timeout_ms: 10_000,
            shutdown_ms: 10_000,
            stream_heartbeat_ms: 10_000,
        }
    }
}
