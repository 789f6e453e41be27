//! Deployments on the wire.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Seconds, Time};

/// Moves the cameras of a group of runners to another version.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeploymentRequest {
    /// Whose it is.
    pub tenant_id: String,
    /// Where it is.
    pub site_id: String,
    /// The group that is deployed together.
    pub deployment_group: String,
    /// The version to move to.
    pub to_version: String,
    /// The version to move from; the one that most of the group's runners have when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_version: Option<String>,
    /// How many cameras are shifted at a time: 1 to 1000, 4 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u32>,
    /// How long shifted cameras may take until they are working: 1 to 3600, 120 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>)]
    pub health_timeout_seconds: Option<Seconds>,
}

impl DeploymentRequest {
    /// How many cameras are shifted at a time when nothing is said.
    pub const DEFAULT_STEP: u32 = 4;
    /// How long they may take until they are working when nothing is said, in milliseconds.
    pub const DEFAULT_HEALTH_TIMEOUT_MS: u64 = 120_000;
}

/// A deployment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Deployment {
    /// Whose it is.
    pub tenant_id: String,
    /// Where it is.
    pub site_id: String,
    /// The group that is deployed together.
    pub deployment_group: String,
    /// The version before.
    pub from_version: String,
    /// The version that is deployed.
    pub to_version: String,
    /// `running`, `paused`, `rolled_back` or `done`.
    pub state: String,
    /// What it waits for, or why it ended.
    pub note: String,
    /// How many cameras are shifted at a time.
    pub step: u32,
    /// How long shifted cameras may take until they are working.
    #[schema(value_type = f64)]
    pub health_timeout_seconds: Seconds,
    /// The cameras that were shifted to the new version.
    pub shifted: Vec<String>,
    /// How many cameras runners of the old version have now.
    pub cameras_old: usize,
    /// How many cameras runners of the new version have now.
    pub cameras_new: usize,
    /// How many runners of the new version are there.
    pub runners_new: usize,
    /// When it began.
    pub started_at: Time,
    /// When it last changed.
    pub updated_at: Time,
    /// What happened in this group, the oldest first; earlier deployments included.
    pub history: Vec<DeploymentEvent>,
}

/// Something that happened to a deployment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct DeploymentEvent {
    /// When.
    pub at: Time,
    /// The version that was deployed.
    pub to_version: String,
    /// What.
    pub what: String,
}

/// A page of deployments.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct DeploymentList {
    /// The deployments.
    pub deployments: Vec<Deployment>,
    /// Where the next page begins, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}
