//! What an orchestrator counts, under the contract's exact names.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct Previous {
    previous_state: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct State {
    state: &'static str,
}

/// The counters of one orchestrator. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    starts: Family<Outcome, Counter>,
    expired: Family<Previous, Counter>,
    sessions: Family<State, Gauge>,
    slots_in_use: Gauge,
}

/// How a start ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// The stream became playable.
    Started,
    /// Another session has the channel.
    RejectedBusy,
    /// Every tuner is in use.
    RejectedNoTuner,
    /// It never became playable.
    Failed,
}

impl Metrics {
    /// Registers the counters.
    pub fn register(&self, registry: &mut Registry) {
        leasehold_api::register_metrics!(registry, self;
            starts: "v3_worker_start", "Starts by their outcome";
            expired: "xg2g_sessions_lease_expired", "Sessions that ended because nobody sent a heartbeat";
            sessions: "leasehold_sessions", "Sessions by state, as of the last look";
            slots_in_use: "leasehold_tuner_slots_in_use", "Tuner slots that this worker has";
        );
    }

    /// Everything there is, with made-up figures: for the reference page.
    #[doc(hidden)]
    pub fn example() -> String {
        let (it, mut registry) = (Self::default(), Registry::default());
        it.register(&mut registry);
        it.started(Start::Started);
        it.expired(lease::session::State::Running);
        it.counted(lease::session::State::Running, 1);
        crate::process::text(&[&registry])
    }

    pub(super) fn started(&self, start: Start) {
        let outcome = match start {
            Start::Started => "started",
            Start::RejectedBusy => "rejected_busy",
            Start::RejectedNoTuner => "rejected_no_tuner",
            Start::Failed => "failed",
        };
        self.starts.get_or_create(&Outcome { outcome }).inc();
    }

    pub(super) fn expired(&self, previous: lease::session::State) {
        let previous_state = previous.as_str();
        self.expired
            .get_or_create(&Previous { previous_state })
            .inc();
    }

    pub(super) fn counted(&self, state: lease::session::State, count: usize) {
        let state = state.as_str();
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.sessions.get_or_create(&State { state }).set(count);
    }

    pub(super) fn slot_taken(&self) {
        self.slots_in_use.inc();
    }

    pub(super) fn slot_given_back(&self) {
        self.slots_in_use.dec();
    }
}
