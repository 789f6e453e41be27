//! Runners: hosts that take camera leases.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Allowance, Checks, FieldError};
use crate::{Incarnation, Ttl, UnixMillis};

/// What a runner is ordered to do, or does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunnerStatus {
    /// Takes and does work.
    #[default]
    Active,
    /// Gives everything up, step by step.
    Draining,
    /// Keeps what it has and takes nothing new.
    Cordoned,
    /// Silent for longer than its presence lasts.
    Inactive,
}

impl RunnerStatus {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Active, Self::Draining, Self::Cordoned, Self::Inactive];
}

/// A runner as it is kept.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Runner {
    /// Its name.
    pub runner_id: String,
    /// Whose it is.
    pub tenant_id: String,
    /// Where it is.
    pub site_id: String,
    /// The group that is deployed together.
    pub deployment_group: String,
    /// The version that it runs.
    pub deployment_version: String,
    /// Where it can be reached.
    pub host: String,
    /// On which port.
    pub port: u16,
    /// How many cameras it may have.
    #[serde(default = "default_capacity")]
    pub capacity: u32,
    /// Where its metrics are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics_port: Option<u16>,
    /// What it can do.
    #[serde(default)]
    pub capabilities: Vec<String>,
    /// This process start.
    pub incarnation: Incarnation,
    /// What it is ordered to do. Whether it is silent is known from its presence, not from here.
    #[serde(default)]
    pub status: RunnerStatus,
    /// Whether it gives everything up immediately when it drains, without handing it over.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drains_hard: bool,
    /// How much it says it has.
    #[serde(default)]
    pub current_load: u32,
    /// What it last reported.
    #[serde(default)]
    pub metrics: Map<String, Value>,
    /// How many cameras it is given while it is too busy for its capacity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowance: Option<Allowance>,
    /// How long it counts as present without a heartbeat, as it registered.
    #[serde(default = "default_presence")]
    pub presence_ttl: Ttl,
    /// When it came.
    pub registered_at: UnixMillis,
    /// When it last sent a heartbeat.
    pub last_heartbeat: UnixMillis,
}

fn default_capacity() -> u32 {
    16
}

fn default_presence() -> Ttl {
    Runner::DEFAULT_PRESENCE
}

impl Runner {
    /// How long a runner counts as present without a heartbeat when it does not say.
    pub const DEFAULT_PRESENCE: Ttl = match Ttl::from_secs(60) {
        Ok(ttl) => ttl,
        Err(_) => panic!("a minute is a ttl"),
    };
    /// The longest host, in bytes.
    pub const MAX_HOST_BYTES: usize = 255;
    /// More cameras than one host can look at.
    pub const MAX_CAPACITY: u32 = 10_000;

    /// Everything that is wrong with it.
    pub fn validate(&self) -> Result<(), Vec<FieldError>> {
        let mut checks = Checks::default();
        checks.name(&self.runner_id, "runner_id");
        checks.name(&self.tenant_id, "tenant_id");
        checks.name(&self.site_id, "site_id");
        checks.name(&self.deployment_group, "deployment_group");
        checks.name(&self.deployment_version, "deployment_version");
        checks.require(
            !self.host.is_empty()
                && self.host.len() <= Self::MAX_HOST_BYTES
                && crate::text::is_visible(&self.host),
            "host",
            "1 to 255 bytes without white space",
        );
        checks.require(self.port > 0, "port", "a port from 1 to 65535");
        checks.require(
            (1..=Self::MAX_CAPACITY).contains(&self.capacity),
            "capacity",
            "a whole number from 1 to 10000",
        );
        checks.labels(&self.capabilities, "capabilities");
        checks.finish()
    }
}
