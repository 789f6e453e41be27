//! Cameras.

use serde::{Deserialize, Serialize};
use serde_json::Value;

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

/// The status of a camera, as its operator last set it. Nothing here changes it, and it is part of no
/// version: a camera that goes offline restarts no worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CameraStatus {
    /// It delivers pictures.
    Online,
    /// It delivers none, or nobody wrote yet.
    #[default]
    Offline,
    /// It fails.
    Error,
    /// Somebody works on it.
    Maintenance,
}

impl CameraStatus {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Online, Self::Offline, Self::Error, Self::Maintenance];

    /// From its name.
    pub fn parse(name: &str) -> Option<Self> {
        serde_json::from_value(name.into()).ok()
    }
}

/// How `min_area_px` and `min_area_roi_percent` are used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MinAreaMode {
    /// The area counts in pixels.
    #[default]
    Px,
    /// The area counts as a part of the include zones.
    RoiPercent,
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
    /// By how much changed pixels grow before they are joined.
    pub dilation_px: u32,
    /// Smaller differences of a pixel are noise.
    pub noise_floor: u32,
    /// Look at least this often, moving or not; 0 means never for that reason.
    pub max_inference_interval_seconds: f64,
    /// Whether motion is computed inside the include zones only.
    pub roi_native: bool,
    /// How strongly the threshold follows the picture inside the zones.
    pub adaptive_threshold_factor: f64,
    /// Which of the two smallest areas counts.
    pub min_area_mode: MinAreaMode,
    /// How much must move, as a part of the include zones.
    pub min_area_roi_percent: f64,
}

impl Default for MotionGating {
    fn default() -> Self {
        Self {
            enabled: true,
            downscale: 0.5,
            min_area_px: 1500,
            cooldown_frames: 2,
            dilation_px: 6,
            noise_floor: 12,
            max_inference_interval_seconds: 10.0,
            roi_native: true,
            adaptive_threshold_factor: 0.7,
            min_area_mode: MinAreaMode::Px,
            min_area_roi_percent: 0.5,
        }
    }
}

impl MotionGating {
    /// The fields that every version covers. The others count only when they are not the default, so that
    /// versions from before they were known stay the same.
    const ALWAYS: [&str; 4] = ["enabled", "downscale", "min_area_px", "cooldown_frames"];

    fn check(&self, checks: &mut Checks) {
        checks.unit(self.downscale, "motion_gating.downscale");
        for (value, name) in [
            (
                self.max_inference_interval_seconds,
                "motion_gating.max_inference_interval_seconds",
            ),
            (
                self.adaptive_threshold_factor,
                "motion_gating.adaptive_threshold_factor",
            ),
        ] {
            checks.require(
                value.is_finite() && value >= 0.0,
                name,
                "a number of at least 0",
            );
        }
        checks.require(
            (0.0..=100.0).contains(&self.min_area_roi_percent),
            "motion_gating.min_area_roi_percent",
            "a number from 0 to 100",
        );
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
    /// Only these things count. Without a list all do; with an empty one none does.
    #[serde(default)]
    pub allow_labels: Option<Vec<String>>,
    /// These things do not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deny_labels: Option<Vec<String>>,
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
    /// How it does, as it was written last.
    #[serde(default)]
    pub status: CameraStatus,
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
    /// The longest address, in bytes.
    pub const MAX_URL_BYTES: usize = 2048;
    /// What an address may begin with.
    pub const URL_SCHEMES: [&str; 5] = ["rtsp", "rtsps", "http", "https", "file"];

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
        self.motion_gating.check(&mut checks);
        checks.labels(self.allow_labels.iter().flatten(), "allow_labels");
        checks.labels(self.deny_labels.iter().flatten(), "deny_labels");
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
            map.remove("status");
            let defaults = serde_json::to_value(MotionGating::default()).unwrap_or_default();
            if let Some(Value::Object(gating)) = map.get_mut("motion_gating") {
                gating.retain(|name, value| {
                    MotionGating::ALWAYS.contains(&name.as_str())
                        || defaults[name.as_str()] != *value
                });
            }
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
    let Some((scheme, rest)) = url.split_once("://") else {
        return false;
    };
    Camera::URL_SCHEMES.contains(&scheme)
        && !rest.is_empty()
        && url.len() <= Camera::MAX_URL_BYTES
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
    fn fields_that_came_later_change_no_version_until_they_are_used() {
        let mut document = serde_json::to_value(camera()).unwrap();
        document["motion_gating"]["noise_floor"] = 12.into();
        document["status"] = "maintenance".into();
        let same: Camera = serde_json::from_value(document.clone()).unwrap();
        assert_eq!(same.config_version(), camera().config_version());
        assert_eq!(
            camera().config_version(),
            "a7b9d4b5d1d6af0a034d4208275492aedba29c78829ea2d473910755ec05a5f0",
            "stored by servers of before"
        );
        document["motion_gating"]["noise_floor"] = 13.into();
        let other: Camera = serde_json::from_value(document).unwrap();
        assert_ne!(other.config_version(), camera().config_version());
    }

    #[test]
    fn no_list_of_labels_is_not_an_empty_one() {
        let of = |labels: &str| -> Camera {
            let text = serde_json::to_string(&camera()).unwrap();
            let text = text.replace(r#"["person","car","truck"]"#, labels);
            serde_json::from_str(&text).unwrap()
        };
        assert_eq!(of("null").allow_labels, None);
        assert_eq!(of("[]").allow_labels, Some(Vec::new()));
        for labels in ["null", "[]"] {
            let written = serde_json::to_value(of(labels)).unwrap();
            assert_eq!(written["allow_labels"].to_string(), labels);
        }
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
