//! Which runner should have which camera, and why.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What would change in a site, given who is there now.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct Plan {
    /// How many cameras the site has.
    pub cameras: usize,
    /// How many live runners it has.
    pub runners: usize,
    /// How many cameras stay where they are.
    pub kept: usize,
    /// How many cameras are to be with nobody: switched off, or parked.
    #[serde(default)]
    pub resting: usize,
    /// What changes, by camera.
    pub moves: Vec<Move>,
}

/// One camera that would change hands.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Move {
    /// The camera.
    pub camera_uuid: String,
    /// Who has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Who should have it; nobody when there is no room.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// `unassigned`, `draining`, `not_eligible`, `failing`, `deployment`, `balance`, `disabled` or
    /// `parked`.
    pub reason: String,
}

/// Why a camera is where it is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    /// The camera.
    pub camera_uuid: String,
    /// Who has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// Who should have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub assigned: Option<String>,
    /// `kept`, or the reason of its move, or why it is with nobody.
    pub reason: String,
    /// Every runner of the site, the one that wants it most first.
    pub candidates: Vec<Candidate>,
}

/// How one runner stands towards one camera.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Candidate {
    /// The runner.
    pub runner_id: String,
    /// How many cameras it has.
    pub load: u32,
    /// How many it may have.
    pub capacity: u32,
    /// What speaks against it: `inactive`, `cordoned`, `draining`, `deployment_group`,
    /// `capabilities`, `failing`, `deployment_version`, `full`. Empty for one that may have it.
    pub obstacles: Vec<String>,
}
