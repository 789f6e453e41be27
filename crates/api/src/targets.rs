//! Polling targets on the wire.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// A polling target. Other fields are kept as they are: the address of a poll may be made of them.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct TargetDocument {
    /// Its id, as in the path. Required for a new target that the path does not name.
    pub id: Option<String>,
    /// Whether it is not to be polled for now.
    #[serde(rename = "isPaused")]
    pub is_paused: Option<bool>,
    /// Its address, unless `poll.url` has it.
    pub url: Option<String>,
    /// How often it is polled, in seconds.
    #[serde(rename = "intervalSeconds")]
    pub interval_seconds: Option<f64>,
}

/// A page of targets.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct TargetList {
    /// The documents, by id.
    #[schema(value_type = Vec<TargetDocument>)]
    pub targets: Vec<Map<String, Value>>,
    /// Where the next page begins, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}
