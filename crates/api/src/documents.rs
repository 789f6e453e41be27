//! What the specification says about the documents of the registry. The kernel's own types read and
//! check them; these only describe.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What is configured of a camera. `PUT` takes only the fields that change; `null` goes back to the
/// default.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct CameraDocument {
    /// Its name: 1 to 255 characters of `A-Z a-z 0-9 . _ -`. Required for a new camera.
    pub camera_uuid: Option<String>,
    /// Where its picture comes from: an `rtsp`, `rtsps`, `http`, `https` or `file` URL. Required for a
    /// new camera.
    pub rtsp_url: Option<String>,
    /// Whose it is: as in the path.
    pub tenant_id: Option<String>,
    /// Where it is: as in the path.
    pub site_id: Option<String>,
    /// Its zones, at most 256.
    pub zones: Option<Vec<ZoneDocument>>,
    /// Looking only where something moves.
    pub motion_gating: Option<MotionGatingDocument>,
    /// Only these things count. `null` means all, an empty list none.
    pub allow_labels: Option<Vec<String>>,
    /// These things do not count.
    pub deny_labels: Option<Vec<String>>,
    /// How sure a detection must be; 0.3 when absent.
    pub min_score: Option<f64>,
    /// When a detection belongs to a zone.
    pub zone_test: Option<ZoneTestWord>,
    /// How much must overlap; 0.1 when absent.
    pub iou_threshold: Option<f64>,
    /// Whether anybody works on it; true when absent. One that is switched off keeps its configuration
    /// and is given up by its runner.
    pub enabled: Option<bool>,
    /// What a runner must be able to do to have it.
    pub required_capabilities: Option<Vec<String>>,
    /// The only deployment group that may have it.
    pub deployment_group: Option<String>,
    /// How it does, as whoever looks after it wrote last; `offline` when absent. Nothing else changes it,
    /// and it belongs to no version.
    pub status: Option<CameraStatusWord>,
}

/// How a camera does.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CameraStatusWord {
    /// It delivers pictures.
    Online,
    /// It delivers none, or nobody wrote yet.
    Offline,
    /// It fails.
    Error,
    /// Somebody works on it.
    Maintenance,
}

/// When a detection belongs to a zone.
#[derive(Serialize, Deserialize, ToSchema)]
pub enum ZoneTestWord {
    /// Its centre lies inside.
    #[serde(rename = "center")]
    Center,
    /// Its centre lies inside, and enough of it overlaps.
    #[serde(rename = "center+iou")]
    CenterAndOverlap,
}

/// Looking only where something moves.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct MotionGatingDocument {
    /// Whether to do it; true when absent.
    pub enabled: Option<bool>,
    /// How much smaller the picture is made first; 0.5 when absent.
    pub downscale: Option<f64>,
    /// How much must move, in pixels; 1500 when absent.
    #[schema(value_type = Option<i64>, minimum = 0, maximum = 4_294_967_295_u32)]
    pub min_area_px: Option<u32>,
    /// How long motion lasts after it stopped, in frames; 2 when absent.
    #[schema(value_type = Option<i64>, minimum = 0, maximum = 4_294_967_295_u32)]
    pub cooldown_frames: Option<u32>,
    /// By how much changed pixels grow before they are joined; 6 when absent.
    #[schema(value_type = Option<i64>, minimum = 0, maximum = 4_294_967_295_u32)]
    pub dilation_px: Option<u32>,
    /// Smaller differences of a pixel are noise; 12 when absent.
    #[schema(value_type = Option<i64>, minimum = 0, maximum = 4_294_967_295_u32)]
    pub noise_floor: Option<u32>,
    /// Look at least this often, moving or not; 10 when absent, 0 for never.
    pub max_inference_interval_seconds: Option<f64>,
    /// Whether motion is computed inside the include zones only; true when absent.
    pub roi_native: Option<bool>,
    /// How strongly the threshold follows the picture inside the zones; 0.7 when absent.
    pub adaptive_threshold_factor: Option<f64>,
    /// Which of the two smallest areas counts; `px` when absent.
    pub min_area_mode: Option<MinAreaModeWord>,
    /// How much must move, as a part of the include zones; 0.5 when absent.
    pub min_area_roi_percent: Option<f64>,
}

/// Which of the two smallest areas counts.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MinAreaModeWord {
    /// `min_area_px`.
    Px,
    /// `min_area_roi_percent`.
    RoiPercent,
}

/// What is configured of a zone. `PUT` takes only the fields that change; `null` goes back to the
/// default.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct ZoneDocument {
    /// Its number: unique within its camera or site. Required for a new zone.
    #[schema(value_type = Option<i64>, minimum = 1, maximum = 4_294_967_295_u32)]
    pub zone_id: Option<u32>,
    /// Its display name: 1 to 255 bytes. Required for a new zone.
    pub name: Option<String>,
    /// Whether motion inside it counts. Required for a new zone.
    pub kind: Option<ZoneKindWord>,
    /// The larger one wins where zones overlap; 100 when absent.
    pub priority: Option<i32>,
    /// Its outline: 3 to 512 points `[x, y]` whose edges do not cross. Required for a new zone.
    pub polygon: Option<Vec<Vec<f64>>>,
    /// Only these things count. `null` means all, an empty list none.
    pub allow_labels: Option<Vec<String>>,
    /// These things do not count.
    pub deny_labels: Option<Vec<String>>,
    /// How sure a detection must be.
    pub min_score: Option<f64>,
    /// For a zone of a site: the one camera it belongs to.
    pub camera_uuid: Option<String>,
}

/// Whether motion inside a zone counts.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ZoneKindWord {
    /// It counts.
    Include,
    /// It is ignored.
    Exclude,
}
