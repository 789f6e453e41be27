//! Figures per target, for Prometheus.

use std::time::Duration;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

/// How a poll goes.
pub(super) const OUTCOMES: [&str; 4] = ["unchanged", "success", "refused", "failed"];

/// From a quick answer in the same house to the longest timeout.
const SECONDS: [f64; 9] = [0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0];

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct OfTarget {
    target: String,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct Outcome {
    target: String,
    outcome: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct Delivered {
    sink: &'static str,
    outcome: &'static str,
}

/// The figures of one program.
pub(super) struct Metrics {
    registry: Registry,
    polls: Family<Outcome, Counter>,
    seconds: Family<OfTarget, Histogram>,
    failures: Family<OfTarget, Gauge>,
    last_success: Family<OfTarget, Gauge>,
    deliveries: Family<Delivered, Counter>,
    owned: Gauge,
}

impl Metrics {
    pub fn new() -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("leasehold_poll"),
            polls: Family::default(),
            seconds: Family::new_with_constructor(|| Histogram::new(SECONDS)),
            failures: Family::default(),
            last_success: Family::default(),
            deliveries: Family::default(),
            owned: Gauge::default(),
        };
        let registry = &mut metrics.registry;
        leasehold_api::register_metrics!(registry, metrics;
            polls: "polls", "Polls made, by how they went";
            seconds: "duration", "How long polls took", Seconds;
            failures: "failures_in_a_row", "Failures since the last success";
            last_success: "last_success_timestamp_seconds", "When the target last answered well";
            deliveries: "deliveries", "Results given to sinks, by how it went";
            owned: "owned", "Targets that this instance owns";
        );
        metrics
    }

    pub fn polled(
        &self,
        target: &str,
        outcome: &'static str,
        took: Duration,
        failures: u32,
        now: u64,
    ) {
        let of_target = OfTarget {
            target: target.to_owned(),
        };
        let counted = Outcome {
            target: target.to_owned(),
            outcome,
        };
        self.polls.get_or_create(&counted).inc();
        self.seconds
            .get_or_create(&of_target)
            .observe(took.as_secs_f64());
        self.failures
            .get_or_create(&of_target)
            .set(i64::from(failures));
        if failures == 0 {
            let seconds = i64::try_from(now / 1_000).unwrap_or(i64::MAX);
            self.last_success.get_or_create(&of_target).set(seconds);
        }
    }

    pub fn delivered(&self, sink: &'static str, outcome: &'static str) {
        self.deliveries
            .get_or_create(&Delivered { sink, outcome })
            .inc();
    }

    pub fn owns(&self, count: usize) {
        self.owned.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// A target belongs to somebody else now, or is gone: its figures would only grow old, and there
    /// would be ever more of them.
    pub fn forget(&self, target: &str) {
        let of_target = OfTarget {
            target: target.to_owned(),
        };
        for outcome in OUTCOMES {
            self.polls.remove(&Outcome {
                target: target.to_owned(),
                outcome,
            });
        }
        self.seconds.remove(&of_target);
        self.failures.remove(&of_target);
        self.last_success.remove(&of_target);
    }

    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Everything there is, with made-up figures.
    pub fn example() -> String {
        let it = Self::new();
        it.polled("target", OUTCOMES[0], Duration::ZERO, 0, 0);
        it.delivered("stdout", "delivered");
        crate::process::text(&[&it.registry])
    }
}
