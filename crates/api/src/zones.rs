//! The zones of a site on the wire.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Time, ZoneDocument};

/// A zone as it is kept.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Zone {
    /// Everything that was configured.
    #[serde(flatten)]
    #[schema(value_type = ZoneDocument)]
    pub zone: lease::registry::Zone,
    /// When it was added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Time>,
    /// When it last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_at: Option<Time>,
}

/// A page of zones.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct ZoneList {
    /// The zones.
    pub zones: Vec<Zone>,
    /// Where the next page begins, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}
