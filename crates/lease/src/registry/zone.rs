//! Zones: parts of a picture that count, or do not.

use serde::{Deserialize, Serialize};

use super::{Checks, FieldError, Polygon};

/// Whether motion inside a zone counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ZoneKind {
    /// It counts.
    Include,
    /// It is ignored.
    Exclude,
}

/// A zone.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Zone {
    /// Its number: unique within its camera or site, at least 1.
    pub zone_id: u32,
    /// What people call it.
    pub name: String,
    /// Whether motion inside it counts.
    pub kind: ZoneKind,
    /// The larger one wins where zones overlap.
    #[serde(default = "default_priority")]
    pub priority: i32,
    /// Its outline.
    pub polygon: Polygon,
    /// Only these things count. Without a list all do; with an empty one none does.
    #[serde(default)]
    pub allow_labels: Option<Vec<String>>,
    /// These things do not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deny_labels: Option<Vec<String>>,
    /// How sure a detection must be.
    #[serde(default)]
    pub min_score: Option<f64>,
    /// For a zone of a site: the one camera it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub camera_uuid: Option<String>,
}

fn default_priority() -> i32 {
    100
}

impl Zone {
    /// The longest display name, in bytes.
    pub const MAX_NAME_BYTES: usize = 255;

    /// Everything that is wrong with it.
    pub fn validate(&self) -> Result<(), Vec<FieldError>> {
        let mut checks = Checks::default();
        self.check("", &mut checks);
        checks.finish()
    }

    pub(super) fn check(&self, prefix: &str, checks: &mut Checks) {
        checks.require(
            self.zone_id >= 1,
            format!("{prefix}zone_id"),
            "a whole number of at least 1",
        );
        checks.require(
            !self.name.is_empty()
                && self.name.len() <= Self::MAX_NAME_BYTES
                && !self.name.chars().any(char::is_control),
            format!("{prefix}name"),
            "1 to 255 bytes without control characters",
        );
        checks.require(
            self.polygon.is_simple(),
            format!("{prefix}polygon"),
            "3 to 512 points whose edges do not cross",
        );
        checks.labels(
            self.allow_labels.iter().flatten(),
            &format!("{prefix}allow_labels"),
        );
        checks.labels(
            self.deny_labels.iter().flatten(),
            &format!("{prefix}deny_labels"),
        );
        if let Some(score) = self.min_score {
            checks.unit(score, format!("{prefix}min_score"));
        }
        if let Some(camera) = &self.camera_uuid {
            checks.name(camera, format!("{prefix}camera_uuid"));
        }
    }
}
