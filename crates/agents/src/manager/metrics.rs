//! Figures of a manager, for Prometheus.

use std::sync::atomic::AtomicU64;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

/// From a call within the machine to a worker that does not listen.
const SECONDS: [f64; 10] = [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct Operation {
    op: &'static str,
    outcome: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct Op {
    op: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct OfWorker {
    worker: String,
    reason: &'static str,
}

/// The figures of one manager.
pub(super) struct Metrics {
    registry: Registry,
    pub desired: Gauge,
    pub active: Gauge,
    pub pending: Gauge,
    pub owned: Gauge,
    pub shards: Gauge,
    pub draining: Gauge,
    pub degraded: Gauge,
    pub owner_changes: Counter,
    pub takeaway: Histogram,
    pub headroom: Gauge<f64, AtomicU64>,
    operations: Family<Operation, Counter>,
    seconds: Family<Op, Histogram>,
    restarts: Family<OfWorker, Counter>,
}

impl Metrics {
    pub fn new() -> Self {
        let mut it = Self {
            registry: Registry::default(),
            desired: Gauge::default(),
            active: Gauge::default(),
            pending: Gauge::default(),
            owned: Gauge::default(),
            shards: Gauge::default(),
            draining: Gauge::default(),
            degraded: Gauge::default(),
            owner_changes: Counter::default(),
            takeaway: Histogram::new(SECONDS),
            headroom: Gauge::default(),
            operations: Family::default(),
            seconds: Family::new_with_constructor(|| Histogram::new(SECONDS)),
            restarts: Family::default(),
        };
        leasehold_api::register_metrics!(it.registry, it;
            desired: "streams_desired_total", "Cameras of the site that are switched on";
            active: "active_leases_total", "Leases that this manager holds";
            pending: "streams_pending_total", "Cameras that this manager should have and has not yet";
            owned: "runner_streams_owned", "Cameras that workers of this manager process";
            shards: "runner_shards", "Workers that run";
            draining: "drain_in_progress", "1 while this manager gives everything up";
            degraded: "leasehold_manager_degraded", "1 while the control plane is out of reach";
            owner_changes: "owner_changes", "Cameras that came or went";
            operations: "leasehold_lease_operations", "Calls to the control plane, by how they came out";
            seconds: "leasehold_lease_operation", "How long calls to the control plane took", Seconds;
            headroom: "leasehold_renew_headroom",
                "The least time that is left before a lease must be renewed", Seconds;
            takeaway: "leasehold_worker_takeaway", "How long workers took to drop a camera", Seconds;
            restarts: "leasehold_worker_restarts", "Workers that were started again, by why";
        );
        it
    }

    /// A call to the control plane came out.
    pub fn called(&self, op: &'static str, outcome: &'static str, took_ms: u64) {
        self.operations
            .get_or_create(&Operation { op, outcome })
            .inc();
        self.seconds
            .get_or_create(&Op { op })
            .observe(took_ms as f64 / 1000.0);
    }

    /// A worker is started again.
    pub fn restarted(&self, worker: &str, reason: &'static str) {
        let worker = worker.to_owned();
        self.restarts
            .get_or_create(&OfWorker { worker, reason })
            .inc();
    }

    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Everything there is, with made-up figures.
    pub fn example() -> String {
        let it = Self::new();
        it.called("acquire", "granted", 1);
        it.restarted("worker-0", "crashed");
        crate::process::text(&[&it.registry])
    }
}

pub(super) fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
