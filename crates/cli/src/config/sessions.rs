//! Sessions: how long they live, and how this machine's worker runs them.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf};

use lease::HolderName;
use leasehold_agents::orchestrator::{Options, Profile, built_in_profiles};
use leasehold_api::{
    config::{Period, shown},
    section,
};
use leasehold_server::SessionOptions;
use secrecy::SecretString;

use super::wrong;
use crate::exit::Failure;

section! {
    /// Sessions: how long they live, and how this machine's worker runs them.
    pub struct Sessions {
        /// How long a session lives without a heartbeat.
        lease_ttl: Period = Period::from_millis(SessionOptions::default().lease_ttl_ms),
        /// How often clients are asked to send one; at most a third of `lease_ttl`.
        heartbeat_interval: Period =
            Period::from_millis(SessionOptions::default().heartbeat_interval_ms),
        /// How often all sessions are looked through, behind the timers.
        expiry_check_interval: Period = Period::from_millis(worker().scan_interval_ms),
        /// How long a session that is over can still be looked at.
        remember: Period = Period::whole(3600),
        /// Phase 1: the API itself tries the service's lease and answers 409 when it is busy.
        api_leases: bool = false,
        /// Whether `serve` also runs a worker.
        worker: bool = true,
        /// The worker's stable name; made from the host, and in `serve` its port, by default.
        worker_name: Option<String> = None,
        /// How long the worker's leases on channels and tuners last.
        worker_ttl: Period = Period::from_millis(worker().lease_ttl.millis()),
        /// Where `leasehold worker` serves `/metrics` and `/healthz`, without a credential, and its streams
        /// to servers that know `worker_secret`; nowhere by default. A worker inside `serve`
        /// has its figures there.
        worker_listen: Option<SocketAddr> = None,
        /// How servers on other machines reach `worker_listen`, to pass the worker's streams on, such as
        /// `http://10.0.0.7:9109`. With `https://` everything at `worker_listen` is served with the
        /// certificate of `server.tls`. Without an address streams are played only from `output_dir`.
        worker_url: Option<String> = None,
        /// What servers send to workers, and workers ask for before they serve a stream: the same on both
        /// sides. Not needed where `worker_listen` is a loopback address.
        #[serde(serialize_with = "shown::secret_option")]
        worker_secret: Option<SecretString> = None,
        /// The authority that issued the certificates of workers with an `https://` address, PEM; by default
        /// those that the system trusts. For servers.
        worker_ca_file: Option<PathBuf> = None,
        /// The slots of the pool of tuners, in order of preference.
        tuner_slots: Vec<String> = worker().tuner_slots,
        /// How many streams may be launched at the same time.
        concurrent_starts: usize = worker().concurrent_starts,
        /// How long a stream may take until it is playable.
        start_limit: Period = Period::from_millis(worker().start_limit_ms),
        /// How long a stream may take to stop before it is killed; at most half of `worker_ttl`.
        stop_limit: Period = Period::from_millis(worker().stop_limit_ms),
        /// How long a running stream may produce nothing.
        stall_limit: Period = Period::from_millis(worker().stall_limit_ms),
        /// Where streams come from: a URL with `{service_ref}`. A generated test picture by default.
        #[serde(serialize_with = "shown::url_option")]
        source_template: Option<String> = None,
        /// Where playlists and segments are written; in the data folder by default.
        output_dir: Option<PathBuf> = None,
        /// How streams are made, beside the built-in profiles `auto`, `high`, `low` and `virtual`.
        profiles: BTreeMap<String, Profile> = BTreeMap::new(),
    }
}

/// The worker's own defaults.
fn worker() -> Options {
    let name = HolderName::new("worker").expect("a name");
    Options::new(name, PathBuf::new())
}

impl Sessions {
    /// The built-in profiles, and those of the file in their place or beside them.
    pub fn all_profiles(&self) -> BTreeMap<String, Profile> {
        let mut profiles = built_in_profiles();
        profiles.extend(self.profiles.clone());
        profiles
    }

    /// Refuses times that cannot work; the rest is checked by whoever uses it.
    pub fn check(&self) -> Result<(), Failure> {
        for (name, period) in [
            ("expiry_check_interval", self.expiry_check_interval),
            ("remember", self.remember),
        ] {
            if period.millis() == 0 {
                return Err(wrong(format!("sessions.{name}: expected more than 0")));
            }
        }
        let Some(url) = &self.worker_url else {
            return Ok(());
        };
        let host = url
            .strip_prefix("http://")
            .or_else(|| url.strip_prefix("https://"))
            .unwrap_or_default();
        if host.is_empty()
            || host.contains(['/', '?', '#', '@'])
            || host.contains(char::is_whitespace)
        {
            return Err(wrong(
                "sessions.worker_url: expected http://HOST:PORT or https://HOST:PORT, without a path",
            ));
        }
        match self.worker_listen {
            None => Err(wrong(
                "sessions.worker_url: expected beside sessions.worker_listen",
            )),
            Some(address) if !address.ip().is_loopback() && self.worker_secret.is_none() => {
                Err(wrong(
                    "sessions.worker_secret: expected where sessions.worker_listen is not a loopback address",
                ))
            }
            Some(_) => Ok(()),
        }
    }
}
