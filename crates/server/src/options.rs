//! Settings of the server, readable from a configuration file. Unknown names are errors.

use std::{net::SocketAddr, path::PathBuf};

use secrecy::SecretString;
use serde::Deserialize;

use crate::{Limits, auth::TokenSpec, doors::v3::SessionOptions};

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
    /// Runners.
    pub runners: RunnerOptions,
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
            runners: RunnerOptions::default(),
        }
    }
}

/// How runners and their cameras are looked after.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunnerOptions {
    /// A runner that has been away for so long is taken off the list; 0 means never.
    pub forget_after_ms: u64,
    /// A camera that nobody has for so long is counted in `leasehold_cameras_unowned_long`.
    pub unowned_after_ms: u64,
}

impl Default for RunnerOptions {
    fn default() -> Self {
        Self {
            forget_after_ms: 7 * 24 * 3_600_000,
            unowned_after_ms: 60_000,
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
