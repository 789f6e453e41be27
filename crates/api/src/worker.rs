//! Between a manager and its workers: the shard's config file, the fence file, and the small bodies
//! that travel over the loopback interface in both directions.
//!
//! A worker reads the [`ShardConfig`] that `--config` names, serves `127.0.0.1:$LEASEHOLD_WORKER_PORT`,
//! and gets every change as a whole new [`ShardConfig`] by `POST /cameras`. Readers ignore fields that
//! they do not know, so a worker written for an older manager keeps working.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The variables that a worker finds in its environment.
pub mod variables {
    /// The worker's id, as in the paths of the manager's HTTP surface.
    pub const WORKER_ID: &str = "LEASEHOLD_WORKER_ID";
    /// The port that the worker must serve on 127.0.0.1.
    pub const WORKER_PORT: &str = "LEASEHOLD_WORKER_PORT";
    /// Where the worker may serve Prometheus metrics for others than the manager.
    pub const WORKER_METRICS_PORT: &str = "LEASEHOLD_WORKER_METRICS_PORT";
    /// The manager's HTTP surface, without a slash at its end.
    pub const MANAGER_URL: &str = "LEASEHOLD_MANAGER_URL";
    /// The path of the [`super::FenceFile`].
    pub const FENCE_FILE: &str = "LEASEHOLD_FENCE_FILE";
}

/// The paths that a worker serves.
pub mod worker_paths {
    /// Whether the worker lives: 200 or 503.
    pub const HEALTH: &str = "/healthz";
    /// Whether enough of its cameras work: 200 or 503, with a [`super::WorkerReady`].
    pub const READY: &str = "/ready";
    /// The new full set: 202 as soon as everything that is not in it has stopped.
    pub const CAMERAS: &str = "/cameras";
    /// Finish what there is and exit: 202.
    pub const DRAIN: &str = "/drain";
    /// Exit now: 202.
    pub const TERMINATE: &str = "/terminate";
    /// Prometheus metrics.
    pub const METRICS: &str = "/metrics";
}

/// The most bytes of a still that a worker sends: `POST
/// $LEASEHOLD_MANAGER_URL/workers/{id}/cameras/{camera_uuid}/picture?token=…&width=…&height=…` with a JPEG, PNG
/// or WebP picture. The token is the camera's, width and height those of its own picture, in whose pixels
/// zones count; the still may be smaller. A worker need not send any.
pub const MAX_PICTURE_BYTES: usize = 256 * 1024;

/// What a worker works on: the config file, and the body of `POST /cameras`. The file has mode 0600,
/// since addresses of cameras carry their logins.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ShardConfig {
    /// The manager's name at the control plane.
    pub runner_id: String,
    /// Which part of the manager's cameras this is; stable over restarts of the worker.
    pub shard_id: String,
    /// Grows with every change. A worker refuses a set that is older than the one it has with 409.
    #[serde(default)]
    pub generation: u64,
    /// The full set: what is not in it is stopped before the answer.
    #[serde(default)]
    pub cameras: Vec<ShardCamera>,
}

/// One camera of a shard.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ShardCamera {
    /// Everything that is configured, the login in its address included. Never log it.
    pub camera: lease::registry::Camera,
    /// The version of everything but the zones.
    #[serde(default)]
    pub config_version: String,
    /// The version of the zones.
    #[serde(default)]
    pub zone_version: String,
    /// Under which lease and until when: as it was when this was written. The [`FenceFile`] has the
    /// deadline as it is now.
    #[serde(flatten)]
    pub fence: Fence,
}

/// The right to work on one camera.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Fence {
    /// The manager's lease.
    pub lease_id: String,
    /// The fencing token: goes along with every message about this camera.
    pub token: u64,
    /// When work on it must have stopped unless a later deadline was written meanwhile: milliseconds on
    /// `CLOCK_BOOTTIME`. The manager's guardian enforces it, whatever the worker does.
    pub deadline_boot_ms: u64,
    /// The same moment on the wall clock, in milliseconds since 1970, for people and logs.
    pub deadline_unix_ms: u64,
    /// Whether results may be published. While `false` another worker of this manager may still publish
    /// for the camera: connect and prepare, publish nothing.
    #[serde(default = "yes")]
    pub publish: bool,
}

fn yes() -> bool {
    true
}

/// The deadlines as they are now, replaced atomically with every renewal. A worker that checks it before
/// it publishes never publishes under a lease that is over.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FenceFile {
    /// By camera. A camera that is not in it must not be worked on.
    #[serde(default)]
    pub cameras: BTreeMap<String, Fence>,
}

/// The answer of a worker's `GET /ready`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WorkerReady {
    /// Whether at least 80 % of its cameras work.
    pub ready: bool,
    /// How many of how many: `"15/16"`.
    #[serde(default)]
    pub cameras: String,
}

impl WorkerReady {
    /// So many of so many cameras work.
    pub fn of(working: usize, all: usize) -> Self {
        Self {
            ready: working * 100 >= all * 80,
            cameras: format!("{working}/{all}"),
        }
    }
}

/// The body of `POST $LEASEHOLD_MANAGER_URL/workers/{id}/heartbeat`. A worker may send it; otherwise the
/// manager asks for `/healthz`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerHeartbeat {
    /// Whatever the worker reports about itself.
    pub stats: Map<String, Value>,
    /// What it reports about each camera.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub cameras: BTreeMap<String, CameraReport>,
}

/// How one camera does.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CameraReport {
    /// `starting`, `working` or `failed`.
    pub state: String,
    /// The token that was last published under.
    pub token: u64,
    /// When the last frame came, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_frame_unix_ms: Option<u64>,
    /// Why it failed, without the camera's login.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_is_flat_enough_for_any_language() {
        let text = r#"{"runner_id": "r", "shard_id": "r-0", "generation": 3, "later": 1, "cameras": [{
            "camera": {"camera_uuid": "c", "rtsp_url": "rtsp://h/1", "tenant_id": "t", "site_id": "s"},
            "config_version": "a", "zone_version": "b", "lease_id": "l", "token": 7,
            "deadline_boot_ms": 10, "deadline_unix_ms": 20}]}"#;
        let shard: ShardConfig = serde_json::from_str(text).unwrap();
        assert_eq!(shard.cameras[0].fence.token, 7);
        assert!(shard.cameras[0].fence.publish, "the default");
        let again = serde_json::to_value(&shard).unwrap();
        assert_eq!(again["cameras"][0]["token"], 7);
        assert_eq!(again["cameras"][0]["camera"]["camera_uuid"], "c");
    }

    #[test]
    fn ready_means_four_of_five() {
        assert!(WorkerReady::of(0, 0).ready);
        assert!(WorkerReady::of(4, 5).ready);
        assert!(!WorkerReady::of(12, 16).ready);
        assert_eq!(WorkerReady::of(13, 16).cameras, "13/16");
    }
}
