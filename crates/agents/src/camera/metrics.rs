//! The worker's figures, for Prometheus.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct OfCamera {
    camera: String,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct Published {
    exchange: &'static str,
    outcome: &'static str,
}

/// The figures of one worker.
pub(super) struct Metrics {
    registry: Registry,
    frames: Family<OfCamera, Counter>,
    skipped: Family<OfCamera, Counter>,
    motion: Family<OfCamera, Counter>,
    restarts: Family<OfCamera, Counter>,
    up: Family<OfCamera, Gauge>,
    last_frame: Family<OfCamera, Gauge>,
    published: Family<Published, Counter>,
    cameras: Gauge,
}

impl Metrics {
    pub fn new() -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("leasehold_worker"),
            frames: Family::default(),
            skipped: Family::default(),
            motion: Family::default(),
            restarts: Family::default(),
            up: Family::default(),
            last_frame: Family::default(),
            published: Family::default(),
            cameras: Gauge::default(),
        };
        let registry = &mut metrics.registry;
        leasehold_api::register_metrics!(registry, metrics;
            frames: "frames", "Pictures looked at";
            skipped: "frames_skipped", "Pictures that came faster than they could be looked at";
            motion: "motion", "Pictures in which something moved";
            restarts: "reconnects", "Streams that ended and were begun again";
            up: "camera_up", "Whether pictures come";
            last_frame: "last_frame_timestamp_seconds", "When the last picture came";
            published: "messages", "Messages by exchange and outcome";
            cameras: "cameras", "Cameras of this worker";
        );
        metrics
    }

    pub fn frame(&self, camera: &str, unix_ms: u64) {
        let labels = of(camera);
        self.frames.get_or_create(&labels).inc();
        let seconds = i64::try_from(unix_ms / 1_000).unwrap_or(i64::MAX);
        self.last_frame.get_or_create(&labels).set(seconds);
    }

    pub fn skipped(&self, camera: &str) {
        self.skipped.get_or_create(&of(camera)).inc();
    }

    pub fn motion(&self, camera: &str) {
        self.motion.get_or_create(&of(camera)).inc();
    }

    pub fn reconnect(&self, camera: &str) {
        self.restarts.get_or_create(&of(camera)).inc();
    }

    pub fn up(&self, camera: &str, up: bool) {
        self.up.get_or_create(&of(camera)).set(i64::from(up));
    }

    pub fn published(&self, exchange: &'static str, outcome: &'static str) {
        self.published
            .get_or_create(&Published { exchange, outcome })
            .inc();
    }

    pub fn cameras(&self, count: usize) {
        self.cameras.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// A camera is another worker's now: its figures would only grow old.
    pub fn forget(&self, camera: &str) {
        let labels = of(camera);
        self.frames.remove(&labels);
        self.skipped.remove(&labels);
        self.motion.remove(&labels);
        self.restarts.remove(&labels);
        self.up.remove(&labels);
        self.last_frame.remove(&labels);
    }

    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Everything there is, with made-up figures.
    pub fn example() -> String {
        let it = Self::new();
        it.frame("camera", 0);
        it.skipped("camera");
        it.motion("camera");
        it.reconnect("camera");
        it.up("camera", true);
        it.published("events", "confirmed");
        crate::process::text(&[&it.registry])
    }
}

fn of(camera: &str) -> OfCamera {
    OfCamera {
        camera: camera.to_owned(),
    }
}
