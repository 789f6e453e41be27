//! Cameras and their sites on the wire.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::{CameraDocument, Time};

/// A document as its writer sends it: whole, or for a change only the fields that change. A field that
/// is `null` goes back to its default.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
pub struct Document(pub Map<String, Value>);

/// A camera as it is kept. The address is shown without its credentials, unless the reader's token may
/// see them.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Camera {
    /// Everything that was configured.
    #[serde(flatten)]
    #[schema(value_type = CameraDocument)]
    pub camera: lease::registry::Camera,
    /// The version of everything but the zones.
    #[serde(default)]
    pub config_version: String,
    /// The version of the zones.
    #[serde(default)]
    pub zone_version: String,
    /// When it was added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Time>,
    /// When it last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_at: Option<Time>,
    /// Set while nobody is given the camera because it failed on every runner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parked: Option<Parked>,
}

/// Why a camera is with nobody although it is switched on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Parked {
    /// What the last runner reported.
    pub reason: String,
    /// When it is tried again. A change of the camera ends it too.
    pub until: Time,
    /// How often it was parked since it last worked.
    #[schema(value_type = i64, minimum = 1, maximum = 4_294_967_295_u32)]
    pub attempts: u32,
}

/// A page of cameras.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct CameraList {
    /// The cameras.
    pub cameras: Vec<Camera>,
    /// Where the next page begins, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// A page of cameras that nobody holds.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct AvailableCameras {
    /// Their names.
    pub cameras: Vec<String>,
    /// Where the next page begins, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// The versions of a site's configuration: equal configurations have equal versions everywhere.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct SiteVersion {
    /// Of all its cameras.
    pub config_version: String,
    /// Of all its zones.
    pub zone_version: String,
    /// The last change; 1970 when there never was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_updated: Option<Time>,
}

/// What a site demands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SiteSettings {
    /// Refuse an acquire that sends a version which is not the current one.
    pub require_current_versions: bool,
}
