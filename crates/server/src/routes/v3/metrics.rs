//! What the session routes count, under the contract's exact names.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct Intent {
    r#type: &'static str,
    outcome: &'static str,
    mode: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct Type {
    r#type: &'static str,
}

/// The counters.
#[derive(Clone, Debug, Default)]
pub(super) struct Counted {
    intents: Family<Intent, Counter>,
    replays: Family<Type, Counter>,
    heartbeats: Counter,
    late: Counter,
}

impl Counted {
    pub fn register(&self, registry: &mut Registry) {
        leasehold_api::register_metrics!(registry, self;
            intents: "v3_intents", "Intents by outcome";
            replays: "v3_idempotent_replay", "Intents that were asked for before";
            heartbeats: "xg2g_sessions_heartbeat", "Heartbeats of live sessions";
            late: "xg2g_sessions_heartbeat_late", "Heartbeats that came after the end of their session";
        );
    }

    pub fn intent(&self, intent: &'static str, outcome: &'static str, api_leases: bool) {
        let mode = if api_leases { "phase1" } else { "phase2" };
        let labels = Intent {
            r#type: intent,
            outcome,
            mode,
        };
        self.intents.get_or_create(&labels).inc();
        if outcome == "replay" {
            self.replays.get_or_create(&Type { r#type: intent }).inc();
        }
    }

    /// Every counter once: see [`crate::metrics::Metrics::example`].
    pub fn example(metrics: &crate::metrics::Metrics) {
        let it = Self::default();
        metrics.register(|registry| it.register(registry));
        it.intent("stream.start", "replay", false);
    }

    pub fn heartbeat(&self) {
        self.heartbeats.inc();
    }

    pub fn late_heartbeat(&self) {
        self.late.inc();
    }
}
