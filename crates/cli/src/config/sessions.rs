//! Sessions: how long they live, and how this machine's worker runs them.

use std::{collections::BTreeMap, path::PathBuf};

use leasehold_agents::orchestrator::{Profile, built_in_profiles};
use serde::{Deserialize, Serialize};

use super::{Period, wrong};
use crate::exit::Failure;

/// Sessions.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sessions {
    /// How long a session lives without a heartbeat.
    pub lease_ttl: Period,
    /// How often clients are asked to send one; at most a third of `lease_ttl`.
    pub heartbeat_interval: Period,
    /// How often all sessions are looked through, behind the timers.
    pub expiry_check_interval: Period,
    /// How long a repeated start is recognised at least. Every value above 0 is kept to: a start is
    /// recognised for as long as its session lives, and a session that is over frees it whatever this
    /// says.
    pub idempotency_ttl: Period,
    /// How long a session that is over can still be looked at.
    pub remember: Period,
    /// Phase 1: the API itself tries the service's lease and answers 409 when it is busy.
    pub api_leases: bool,
    /// Whether `serve` also runs a worker.
    pub worker: bool,
    /// The worker's stable name; made from the host, and in `serve` its port, by default.
    pub worker_name: Option<String>,
    /// The slots of the pool of tuners, in order of preference.
    pub tuner_slots: Vec<String>,
    /// Where streams come from: a URL with `{service_ref}`. A generated test picture by default.
    #[serde(serialize_with = "super::sections::without_password")]
    pub source_template: Option<String>,
    /// Where playlists and segments are written; in the data folder by default.
    pub output_dir: Option<PathBuf>,
    /// How streams are made, beside the built-in profiles `auto`, `high`, `low` and `virtual`.
    pub profiles: BTreeMap<String, Profile>,
}

impl Default for Sessions {
    fn default() -> Self {
        Self {
            lease_ttl: Period::from_millis(60_000),
            heartbeat_interval: Period::from_millis(5_000),
            expiry_check_interval: Period::from_millis(10_000),
            idempotency_ttl: Period::from_millis(30_000),
            remember: Period::from_millis(3_600_000),
            api_leases: false,
            worker: true,
            worker_name: None,
            tuner_slots: ["0", "1", "2", "3"].map(String::from).to_vec(),
            source_template: None,
            output_dir: None,
            profiles: BTreeMap::new(),
        }
    }
}

impl Sessions {
    /// The built-in profiles, and those of the file in their place or beside them.
    pub fn all_profiles(&self) -> BTreeMap<String, Profile> {
        let mut profiles = built_in_profiles();
        profiles.extend(self.profiles.clone());
        profiles
    }

    /// Refuses times that cannot work.
    pub fn check(&self) -> Result<(), Failure> {
        for (name, period) in [
            ("lease_ttl", self.lease_ttl),
            ("heartbeat_interval", self.heartbeat_interval),
            ("expiry_check_interval", self.expiry_check_interval),
            ("idempotency_ttl", self.idempotency_ttl),
            ("remember", self.remember),
        ] {
            if period.millis() == 0 {
                return Err(wrong(format!("sessions.{name}: expected more than 0")));
            }
        }
        Ok(())
    }
}
