//! Cameras.

use serde::{Deserialize, Serialize};

use super::{Checks, FieldError, Zone};
use crate::redact;

/// When a detection belongs to a zone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum ZoneTest {
    /// Its centre lies inside.
    #[default]
    #[serde(rename = "center")]
    Center,
    /// Its centre lies inside, and enough of it overlaps.
    #[serde(rename = "center+iou")]
    CenterAndOverlap,
}

/// Looking only where something moves.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MotionGating {
    /// Whether to do it.
    pub enabled: bool,
    /// How much smaller the picture is made first.
    pub downscale: f64,
    /// How much must move.
    pub min_area_px: u32,
    /// How long motion lasts after it stopped.
    pub cooldown_frames: u32,
}

impl Default for MotionGating {
    fn default() -> Self {
        Self {
            enabled: true,
            downscale: 0.5,
            min_area_px: 1500,
            cooldown_frames: 2,
        }
    }
}

/// A camera.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Camera {
    /// Its name.
    pub camera_uuid: String,
    /// Where its picture comes from. May carry credentials: see [`Camera::without_credentials`].
    pub rtsp_url: String,
    /// Whose it is.
    pub tenant_id: String,
    /// Where it is.
    pub site_id: String,
    /// Its zones.
    #[serde(default)]
    pub zones: Vec<Zone>,
    /// Looking only where something moves.
    #[serde(default)]
    pub motion_gating: MotionGating,
    /// Only these things count; empty means all.
    #[serde(default)]
    pub allow_labels: Vec<String>,
    /// How sure a detection must be.
    #[serde(default = "default_min_score")]
    pub min_score: f64,
    /// When a detection belongs to a zone.
    #[serde(default)]
    pub zone_test: ZoneTest,
    /// How much must overlap.
    #[serde(default = "default_iou_threshold")]
    pub iou_threshold: f64,
    /// Whether anybody works on it. One that is switched off keeps its configuration and has no holder.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub enabled: bool,
    /// What a runner must be able to do to have it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub required_capabilities: Vec<String>,
    /// The only deployment group that may have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployment_group: Option<String>,
}

fn yes() -> bool {
    true
}

/// What is switched on is not written, so that versions from before there was a switch stay the same.
#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_yes(enabled: &bool) -> bool {
    *enabled
}

fn default_min_score() -> f64 {
    0.3
}

fn default_iou_threshold() -> f64 {
    0.1
}

impl Camera {
    /// The most zones a camera may have.
    pub const MAX_ZONES: usize = 256;

    /// Everything that is wrong with it.
    pub fn validate(&self) -> Result<(), Vec<FieldError>> {
        let mut checks = Checks::default();
        checks.name(&self.camera_uuid, "camera_uuid");
        checks.name(&self.tenant_id, "tenant_id");
        checks.name(&self.site_id, "site_id");
        checks.require(
            is_source_url(&self.rtsp_url),
            "rtsp_url",
            "an rtsp, rtsps, http, https or file URL of at most 2048 bytes without white space",
        );
        checks.unit(self.min_score, "min_score");
        checks.unit(self.iou_threshold, "iou_threshold");
        checks.unit(self.motion_gating.downscale, "motion_gating.downscale");
        checks.labels(&self.allow_labels, "allow_labels");
        checks.labels(&self.required_capabilities, "required_capabilities");
        if let Some(group) = &self.deployment_group {
            checks.name(group, "deployment_group");
        }
        checks.require(
            self.zones.len() <= Self::MAX_ZONES,
            "zones",
            "at most 256 zones",
        );
        for (index, zone) in self.zones.iter().enumerate().take(Self::MAX_ZONES) {
            zone.check(&format!("zones[{index}]."), &mut checks);
            checks.require(
                self.zones[..index]
                    .iter()
                    .all(|other| other.zone_id != zone.zone_id),
                format!("zones[{index}].zone_id"),
                "a number that no other zone of the camera has",
            );
        }
        checks.finish()
    }

    /// The same camera, fit to be logged, published and shown.
    #[must_use]
    pub fn without_credentials(mut self) -> Self {
        self.rtsp_url = redact::without_credentials(&self.rtsp_url);
        self
    }

    /// The version of everything but the zones.
    pub fn config_version(&self) -> String {
        let mut value = serde_json::to_value(self).unwrap_or_default();
        if let Some(map) = value.as_object_mut() {
            map.remove("zones");
        }
        crate::canonical::version(&value)
    }

    /// The version of the zones.
    pub fn zone_version(&self) -> String {
        let mut zones = self.zones.clone();
        zones.sort_by_key(|zone| zone.zone_id);
        crate::canonical::version(&serde_json::to_value(zones).unwrap_or_default())
    }
}

fn is_source_url(url: &str) -> bool {
    const SCHEMES: [&str; 5] = ["rtsp", "rtsps", "http", "https", "file"];
    let Some((scheme, rest)) = url.split_once("://") else {
        return false;
    };
    SCHEMES.contains(&scheme)
        && !rest.is_empty()
        && url.len() <= 2048
        && !url.chars().any(|c| c.is_control() || c.is_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn camera() -> Camera {
        serde_json::from_str(
            r#"{"camera_uuid": "cam-001", "rtsp_url": "rtsp://user:secret@camera.local/stream",
                "tenant_id": "tenant-1", "site_id": "site-1",
                "zones": [{"zone_id": 1, "name": "driveway", "kind": "include", "priority": 100,
                           "polygon": [[100, 100], [700, 100], [700, 500], [200, 500]],
                           "allow_labels": ["person", "car"], "min_score": 0.25}],
                "motion_gating": {"enabled": true, "downscale": 0.5, "min_area_px": 1500, "cooldown_frames": 2},
                "allow_labels": ["person", "car", "truck"], "min_score": 0.30,
                "zone_test": "center", "iou_threshold": 0.10}"#,
        )
        .unwrap()
    }

    #[test]
    fn the_documents_camera_is_fine() {
        assert_eq!(camera().validate(), Ok(()));
    }

    #[test]
    fn every_wrong_field_is_named() {
        let mut bad = camera();
        bad.camera_uuid = "a b".into();
        bad.rtsp_url = "rtsp://x/\ny".into();
        bad.min_score = 1.5;
        bad.motion_gating.downscale = f64::NAN;
        bad.zones[0].polygon.0.truncate(2);
        bad.zones.push(camera().zones.remove(0));
        let fields: Vec<String> = bad
            .validate()
            .unwrap_err()
            .into_iter()
            .map(|error| error.field)
            .collect();
        assert_eq!(
            fields,
            [
                "camera_uuid",
                "rtsp_url",
                "min_score",
                "motion_gating.downscale",
                "zones[0].polygon",
                "zones[1].zone_id"
            ]
        );
    }

    #[test]
    fn credentials_never_leave() {
        assert_eq!(
            camera().without_credentials().rtsp_url,
            "rtsp://camera.local/stream"
        );
    }

    #[test]
    fn a_camera_is_on_unless_it_says_otherwise_and_the_switch_is_a_change() {
        let on = camera();
        assert!(on.enabled);
        let written = serde_json::to_value(&on).unwrap();
        assert_eq!(written.get("enabled"), None);
        let mut off = camera();
        off.enabled = false;
        assert_ne!(on.config_version(), off.config_version());
        let again: Camera = serde_json::from_str(&serde_json::to_string(&off).unwrap()).unwrap();
        assert!(!again.enabled);
    }

    #[test]
    fn versions_tell_config_and_zones_apart() {
        let before = camera();
        let mut zone_edited = camera();
        zone_edited.zones[0].priority = 5;
        assert_eq!(before.config_version(), zone_edited.config_version());
        assert_ne!(before.zone_version(), zone_edited.zone_version());
    }
}
