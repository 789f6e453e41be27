//! Where the store is and how it behaves.

use std::time::Duration;

use lease::{Invalid, engine};

use super::{address::Address, keys::CLUSTER_PREFIX};

/// Settings of a Redis store.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where Redis is.
    pub address: Address,
    /// Stands in front of every key, to keep several installations on one server apart. Nothing on
    /// a plain server, so that the documented keys are exact; a hash tag on a cluster.
    pub prefix: String,
    /// Which renewals become events.
    pub renewals: engine::RenewalEvents,
    /// How many keys without a lease are remembered one by one, as in the kernel.
    pub idle_keys: usize,
    /// How long a key without a lease is remembered at most, in ms.
    pub idle_ms: u64,
    /// About how many events the history keeps.
    pub history: u64,
    /// Run although Redis may throw keys away when its memory is full: leases and tokens would
    /// vanish with them.
    pub allow_eviction: bool,
    /// Whether this replica announces expiries and seals the history when the leadership is free.
    pub housekeeping: bool,
    /// A bug in the scripts, for tests that show that it is noticed.
    #[cfg(feature = "conformance")]
    pub flip: Option<crate::conformance::Flip>,
    /// How long a connection may take to come about.
    pub connect_timeout: Duration,
    /// How long an answer may take.
    pub response_timeout: Duration,
}

impl Options {
    /// The defaults for an address.
    pub fn new(address: Address) -> Self {
        let prefix = match address {
            Address::Cluster { .. } => CLUSTER_PREFIX,
            Address::Server { .. } | Address::Sentinel { .. } => "",
        };
        let kernel = engine::Options::default();
        Self {
            prefix: prefix.to_owned(),
            address,
            renewals: kernel.renewals,
            idle_keys: kernel.idle_keys,
            idle_ms: kernel.idle_ms,
            history: 200_000,
            allow_eviction: false,
            housekeeping: true,
            #[cfg(feature = "conformance")]
            flip: None,
            connect_timeout: Duration::from_secs(2),
            response_timeout: Duration::from_secs(3),
        }
    }

    /// Reads an address with its settings:
    ///
    /// - `redis://[[user]:password@]host[:port][/db]`, `rediss://…` with TLS
    /// - `redis-cluster://[…@]host:port,host:port`
    /// - `redis+sentinel://[…@]host:port,host:port/service[/db]`
    ///
    /// followed by `?` and any of `prefix=…`, `history=…`, `allow_eviction=true`, `ca=FILE` (trust the
    /// certificates in this PEM file instead of the system's), and for clusters and sentinels
    /// `tls=true`.
    ///
    /// ```
    /// use leasehold_store::redis::Options;
    /// let options = Options::parse("redis://127.0.0.1:6379/2?prefix=blue:").unwrap();
    /// assert_eq!(options.prefix, "blue:");
    /// assert!(Options::parse("redis://127.0.0.1?colour=blue").is_err());
    /// ```
    pub fn parse(url: &str) -> Result<Self, Invalid> {
        let (place, query) = url.split_once('?').unwrap_or((url, ""));
        let mut settings: Vec<(&str, &str)> = query
            .split('&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| pair.split_once('=').unwrap_or((pair, "true")))
            .collect();
        let mut tls = false;
        settings.retain(|&(name, value)| {
            let is_tls = name == "tls";
            tls |= is_tls && value == "true";
            !is_tls
        });
        let mut options = Self::new(Address::parse(place, tls)?);
        for (name, value) in settings {
            match name {
                "prefix" => match options.address {
                    // Without the tag the keys would be spread over the nodes.
                    Address::Cluster { .. } if !value.contains('{') => {
                        options.prefix = format!("{{{value}}}:");
                    }
                    _ => value.clone_into(&mut options.prefix),
                },
                "history" => {
                    options.history = value
                        .parse()
                        .ok()
                        .filter(|&history| history > 0)
                        .ok_or(Invalid::new("history", "a number of events"))?;
                }
                "allow_eviction" => options.allow_eviction = value == "true",
                "ca" => {
                    let login = options.address.login_mut();
                    if !login.tls || value.is_empty() {
                        return Err(Invalid::new("ca", "a PEM file, with rediss:// or tls=true"));
                    }
                    login.ca = Some(value.into());
                }
                _ => {
                    return Err(Invalid::new(
                        "store",
                        "no other settings than prefix, history, allow_eviction, ca and tls",
                    ));
                }
            }
        }
        super::keys::Keys::new(&options.prefix)?;
        Ok(options)
    }
}
