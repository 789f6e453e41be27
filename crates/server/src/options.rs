//! Settings of the server. Those that are sections of the configuration file are declared here, once.

use std::{net::SocketAddr, path::PathBuf};

use leasehold_api::{
    config::{DEFAULT_PORT, Period},
    section,
};
use secrecy::SecretString;

use crate::{Limits, auth::TokenSpec, routes::v3::SessionOptions};

/// Settings of the server.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where to listen.
    pub listen: SocketAddr,
    /// Allow a non-loopback address without TLS.
    pub insecure_listen: bool,
    /// Encrypt connections.
    pub tls: Option<TlsOptions>,
    /// Where credentials and the development certificate are kept.
    pub data_dir: Option<PathBuf>,
    /// Credentials beside those in the data folder.
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
    /// The name of this machine: under it and the port, this server announces itself to all that share
    /// the store.
    pub replica: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], DEFAULT_PORT)),
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
            replica: None,
        }
    }
}

section! {
    /// How a server looks after runners and their cameras.
    #[derive(Copy, PartialEq, Eq)]
    pub struct RunnerOptions {
        /// A runner that has been away for so long is taken off the list; 0 means never.
        forget_after: Period = Period::whole(7 * 24 * 3600),
        /// A camera that nobody has for so long is counted in `leasehold_cameras_unowned_long`.
        unowned_after: Period = Period::whole(60),
    }
}

section! {
    /// How connections are encrypted: with a certificate of one's own, or with a generated one. The files
    /// are read again on SIGHUP.
    pub struct TlsOptions {
        /// The certificate chain, PEM.
        certificate: Option<PathBuf> = None,
        /// Its private key, PEM.
        key: Option<PathBuf> = None,
        /// Make a certificate for development and keep it in the data folder.
        self_signed: bool = false,
        /// Further host names for the development certificate, beside `localhost` and the loopback
        /// addresses.
        names: Vec<String> = Vec::new(),
    }
}

impl TlsOptions {
    /// Whether connections are encrypted.
    pub fn is_wanted(&self) -> bool {
        self.self_signed || self.certificate.is_some() || self.key.is_some()
    }
}

/// Which networks may talk to the server at all.
#[derive(Clone, Debug, Default)]
pub struct GuardOptions {
    /// Networks or addresses; the private and loopback ranges of IPv4 and IPv6 when absent.
    pub allow: Option<Vec<String>>,
}
