//! What a runner reports with a heartbeat.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Load;
use crate::{Lease, UnixMillis};

/// What a runner reports with a heartbeat, kept with its presence.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// How many cameras it works on.
    #[serde(default)]
    pub current_load: u32,
    /// Whatever else it reports.
    #[serde(default)]
    pub metrics: Map<String, Value>,
    /// When it was made: what the runner got since is not in it.
    #[serde(default)]
    pub at: UnixMillis,
    /// The cameras that it had and did not report as working, as far as they fit.
    #[serde(default)]
    pub not_working: Vec<String>,
    /// How many these are.
    #[serde(default)]
    pub not_working_count: usize,
    /// How busy it is, and since when.
    #[serde(default)]
    pub load: Load,
}

impl Report {
    /// More names than a report has room for beside everything else in it.
    pub const MAX_NAMES: usize = 16;

    /// The report that came with the last renewal of a presence.
    pub fn of(presence: &Lease) -> Self {
        presence
            .stats
            .as_deref()
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default()
    }

    /// Whether a camera was reported as working by a runner that has had it since then.
    pub fn works(&self, camera: &str, since: UnixMillis) -> bool {
        since < self.at
            && self.not_working_count <= Self::MAX_NAMES
            && !self.not_working.iter().any(|it| it == camera)
    }
}
