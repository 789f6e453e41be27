//! What is published: the state of streams, and what moved. Every message carries its fencing token.

use leasehold_api::Time;
use serde::Serialize;

/// What every message has.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Head {
    pub message_id: String,
    /// What happened.
    pub event: &'static str,
    pub tenant_id: String,
    pub site_id: String,
    pub camera_uuid: String,
    pub runner_id: String,
    pub shard_id: String,
    pub worker_id: String,
    pub lease_id: String,
    /// The fencing token: a receiver refuses what is older than what it has seen.
    pub token: u64,
    pub config_version: String,
    pub zone_version: String,
    /// When it was written, on this machine's clock.
    pub at: Time,
}

/// The state of one stream.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Status {
    #[serde(flatten)]
    pub head: Head,
    /// Pictures seen under this token.
    pub frames: u64,
    /// When the last of them came; with `started` and `stopped` a receiver computes gaps from it.
    pub last_frame_at: Option<Time>,
    /// Why it is offline, without the camera's login.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Motion.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Detection {
    #[serde(flatten)]
    pub head: Head,
    /// The number of the picture under this token.
    pub frame: u64,
    /// When it came.
    pub frame_at: Time,
    pub areas: Vec<Moved>,
}

/// One area that moved, in pixels of the camera's own picture.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Moved {
    /// The zone that it counts for; absent where the camera has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone_id: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Left, top, width, height.
    #[serde(rename = "box")]
    pub bounds: [f64; 4],
    /// How many pixels changed.
    pub area_px: f64,
}

/// Where a message goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Topic {
    Status,
    Detections,
}

impl Topic {
    pub const ALL: [Self; 2] = [Self::Status, Self::Detections];

    /// The topic exchange.
    pub fn exchange(self) -> &'static str {
        match self {
            Self::Status => "status.topic",
            Self::Detections => "detections.topic",
        }
    }

    /// What its routing keys begin with.
    pub fn head(self) -> &'static str {
        match self {
            Self::Status => "stream.status",
            Self::Detections => "detections",
        }
    }
}
