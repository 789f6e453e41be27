//! Runners on the wire.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::{Lease, Loss, Seconds, SiteVersion, Time};

/// A runner says that it is there.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RegisterRequest {
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
    /// How many cameras it may have; 16 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u32>,
    /// Where its metrics are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics_port: Option<u16>,
    /// What it can do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<String>,
    /// This process start. Without one, the runner is known by its host and port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<String>,
    /// How long it counts as present without a heartbeat: 1 to 3600, 60 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>)]
    pub ttl_seconds: Option<Seconds>,
}

impl RegisterRequest {
    /// How many cameras a runner may have when it does not say.
    pub const DEFAULT_CAPACITY: u32 = 16;
}

/// The answer to a registration.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Registered {
    /// The runner as it is known now.
    #[serde(flatten)]
    pub runner: Runner,
    /// Whether it was unknown before.
    pub created: bool,
}

/// A runner as it is known.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Runner {
    /// Its name.
    pub runner_id: String,
    /// Whose it is.
    #[serde(default)]
    pub tenant_id: String,
    /// Where it is.
    #[serde(default)]
    pub site_id: String,
    /// The group that is deployed together.
    #[serde(default)]
    pub deployment_group: String,
    /// The version that it runs.
    #[serde(default)]
    pub deployment_version: String,
    /// Where it can be reached.
    #[serde(default)]
    pub host: String,
    /// On which port.
    #[serde(default)]
    pub port: u16,
    /// How many cameras it may have.
    #[serde(default)]
    pub capacity: u32,
    /// How many of these it is given while it is too busy for all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<i64>, minimum = 0, maximum = 10_000)]
    pub allowance: Option<u32>,
    /// Where its metrics are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics_port: Option<u16>,
    /// What it can do.
    #[serde(default)]
    pub capabilities: Vec<String>,
    /// This process start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<String>,
    /// `active`, `draining`, `cordoned` or `inactive`.
    pub status: String,
    /// How much it says it has.
    #[serde(default)]
    #[schema(value_type = i64, minimum = 0, maximum = 4_294_967_295_u32)]
    pub current_load: u32,
    /// What it last reported.
    #[serde(default)]
    pub metrics: Map<String, Value>,
    /// When it registered.
    pub registered_at: Time,
    /// When it last sent a heartbeat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heartbeat: Option<Time>,
    /// Until when it counts as present.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub present_until: Option<Time>,
    /// The cameras it holds.
    #[serde(default)]
    pub assigned_cameras: Vec<String>,
}

/// A page of runners.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct RunnerList {
    /// The runners.
    pub runners: Vec<Runner>,
    /// Where the next page begins, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// A runner is gone.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct RunnerRemoved {
    /// Always true.
    pub success: bool,
    /// How many cameras are free again.
    #[serde(default)]
    pub leases_released: usize,
}

/// A runner's heartbeat.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RunnerHeartbeatRequest {
    /// How many cameras it works on.
    #[schema(value_type = i64, minimum = 0, maximum = 4_294_967_295_u32)]
    pub current_load: u32,
    /// Whatever it reports.
    pub metrics: Map<String, Value>,
    /// The ids of the leases it believes it has: the answer says which of them are lost.
    pub active_leases: Vec<String>,
    /// This process start, as at its registration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<String>,
    /// How its cameras do, by name. A camera that fails goes to another runner, and is parked when it
    /// failed on all of them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub camera_status: BTreeMap<String, CameraStatus>,
    /// The revision of the newest change that it has seen: the answer is at least as new.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
}

impl RunnerHeartbeatRequest {
    /// How many leases or cameras one heartbeat may name: as many as a runner can have.
    pub const MAX_LEASES: usize = lease::registry::Runner::MAX_CAPACITY as usize;
}

/// How a camera does on its runner.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CameraStatus {
    /// `working`, `failed`, or anything else while that is not known yet.
    pub state: String,
    /// Why it failed, without the camera's login.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Everything a runner should know, in one answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct RunnerHeartbeatAnswer {
    /// Always true.
    pub success: bool,
    /// `active`, `draining` or `cordoned`: what the runner is ordered to do.
    #[serde(default)]
    pub status: String,
    /// When the next one is due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_heartbeat_due: Option<Time>,
    /// All its leases, renewed.
    #[serde(default)]
    pub leases: Vec<Lease>,
    /// What it had and has no longer.
    #[serde(default)]
    pub lost: Vec<LostLease>,
    /// Cameras it should acquire.
    #[serde(default)]
    pub take: Vec<CameraVersion>,
    /// Cameras it should give up, and why.
    #[serde(default)]
    pub give_up: Vec<GiveUp>,
    /// The current versions of the cameras it has.
    #[serde(default)]
    pub cameras: Vec<CameraVersion>,
    /// Cameras that their holders offer to hand over to it.
    #[serde(default)]
    pub offers: Vec<CameraVersion>,
    /// The current versions of its site.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<SiteVersion>,
    /// `cordon` or `drain`, and `hard` beside `drain` when nothing is to be handed over.
    #[serde(default)]
    pub orders: Vec<String>,
}

/// A lease that is gone.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct LostLease {
    /// Which.
    pub lease_id: String,
    /// The camera, if it is still known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub camera_uuid: Option<String>,
    /// Why.
    pub loss: Loss,
}

/// A camera and the versions it should be worked on with.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct CameraVersion {
    /// The camera.
    pub camera_uuid: String,
    /// The version of everything but the zones.
    #[serde(default)]
    pub config_version: String,
    /// The version of the zones.
    #[serde(default)]
    pub zone_version: String,
}

/// A camera that a runner should no longer have.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct GiveUp {
    /// The camera.
    pub camera_uuid: String,
    /// `draining`, `not_eligible`, `failing`, `deployment`, `balance`, `disabled`, `parked` or
    /// `removed`.
    pub reason: String,
    /// Who should have it next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// That runner's process start, while it is present: who a hand-over is offered to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_incarnation: Option<String>,
}

/// Which cameras a runner should have.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct Assignments {
    /// The runner.
    pub runner_id: String,
    /// What it has and keeps.
    pub keep: Vec<CameraVersion>,
    /// What it should acquire.
    pub take: Vec<CameraVersion>,
    /// What it should give up.
    pub give_up: Vec<GiveUp>,
}
