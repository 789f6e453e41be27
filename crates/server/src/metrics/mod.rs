//! The server's metrics. One registry per server, so that several can live in one process.

mod timed;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};
use timed::Timed;

/// From half a millisecond to ten seconds: what a call over a network may take.
const SECONDS: [f64; 14] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct Request {
    method: &'static str,
    route: String,
    status: u16,
}

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
struct EventLabels {
    event: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct UnownedLabels {
    reason: &'static str,
}

/// Why nobody has a camera.
const UNOWNED: [&str; 5] = ["pending", "no_runner", "not_eligible", "no_room", "parked"];

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct ShedLabels {
    class: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct RouteLabels {
    route: String,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct KindLabels {
    kind: String,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct StatusLabels {
    status: &'static str,
}

/// How a runner is.
const RUNNERS: [&str; 4] = ["active", "draining", "cordoned", "absent"];
/// Kinds are made up by users: so many are counted under their own name, the rest together.
const MAX_KINDS: usize = 50;
const OTHER_KINDS: &str = "other";

/// A gauge that counts what is open: one more now, one less when dropped.
pub struct Open(Gauge);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// The metrics of one server. Cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
    requests: Family<Request, Counter>,
    operations: Family<Operation, Counter>,
    operation_seconds: Family<Op, Histogram, fn() -> Histogram>,
    request_seconds: Family<RouteLabels, Histogram, fn() -> Histogram>,
    /// Those of both, as they are found again.
    timed_requests: Arc<Timed<(&'static str, u16)>>,
    timed_operations: Arc<Timed<&'static str>>,
    live_leases: Gauge,
    live_by_kind: Family<KindLabels, Gauge>,
    /// The gauges of `live_by_kind`, so that counting one more looks up its kind only.
    kinds: Arc<Mutex<BTreeMap<String, Gauge>>>,
    expiry_lateness: Histogram,
    store_up: Gauge,
    store_seconds: Histogram,
    history: Gauge,
    runners: Family<StatusLabels, Gauge>,
    waiters: Gauge,
    watchers: Gauge,
    holder_streams: Gauge,
    events: Family<EventLabels, Counter>,
    /// Those of each kind, once there was one.
    counted_events: Arc<[OnceLock<Counter>; lease::EventKind::ALL.len()]>,
    shed: Family<ShedLabels, Counter>,
    unowned: Family<UnownedLabels, Gauge>,
    unowned_long: Family<UnownedLabels, Gauge>,
}

impl Metrics {
    /// A registry with everything at zero.
    pub fn new() -> Self {
        let histogram: fn() -> Histogram = || Histogram::new(SECONDS);
        let it = Self {
            registry: Arc::new(Mutex::new(Registry::default())),
            requests: Family::default(),
            operations: Family::default(),
            operation_seconds: Family::new_with_constructor(histogram),
            request_seconds: Family::new_with_constructor(histogram),
            timed_requests: Arc::default(),
            timed_operations: Arc::default(),
            live_leases: Gauge::default(),
            live_by_kind: Family::default(),
            kinds: Arc::default(),
            expiry_lateness: histogram(),
            store_up: Gauge::default(),
            store_seconds: histogram(),
            history: Gauge::default(),
            runners: Family::default(),
            waiters: Gauge::default(),
            watchers: Gauge::default(),
            holder_streams: Gauge::default(),
            events: Family::default(),
            counted_events: Arc::default(),
            shed: Family::default(),
            unowned: Family::default(),
            unowned_long: Family::default(),
        };
        it.register(|registry| {
            leasehold_api::register_metrics!(registry, it;
                requests: "leasehold_http_requests", "Requests by route and status";
                operations: "leasehold_lease_operations", "Operations on leases by outcome";
                operation_seconds: "leasehold_lease_operation_seconds",
                    "Time of operations on leases; acquires that may wait in a queue are acquire_wait";
                request_seconds: "leasehold_http_request_seconds",
                    "Time of requests by route; of streams until their head is sent";
                live_by_kind: "leasehold_live_leases_by_kind",
                    "Leases that are live, by the kind of their key; rare kinds together as other";
                expiry_lateness: "leasehold_expiry_lateness_seconds",
                    "How long after their end leases were expired, the grace of the policy hold included";
                store_up: "leasehold_store_up", "1 while the store answers and takes changes";
                store_seconds: "leasehold_store_answer_seconds",
                    "How long the store took to answer, asked every ten seconds";
                history: "leasehold_history_events", "Events in the history";
                runners: "leasehold_runners", "Registered runners by status";
                live_leases: "leasehold_live_leases", "Leases that are live";
                waiters: "leasehold_waiters", "Acquires of this server that wait";
                watchers: "leasehold_watchers", "Open event streams of this server";
                holder_streams: "leasehold_holder_streams", "Open holder streams of this server";
                events: "leasehold_events",
                    "Events by their type; of renewals those that this server was asked for";
                shed: "leasehold_shed", "Requests turned away for lack of room";
                unowned: "leasehold_cameras_unowned", "Cameras that somebody should have and nobody has";
                unowned_long: "leasehold_cameras_unowned_long",
                    "Those of them that nobody has had for longer than runners.unowned_after";
            );
        });
        it
    }

    /// Adds further metrics to the registry: for routes that bring their own.
    pub fn register(&self, add: impl FnOnce(&mut Registry)) {
        add(&mut self.registry.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Everything as OpenMetrics.
    pub fn text(&self) -> String {
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = String::new();
        if let Err(error) = encode(&mut text, &registry) {
            tracing::error!(%error, "metrics could not be written");
        }
        text
    }

    /// An operation on leases went this way and took that long.
    pub fn operation(&self, op: &'static str, outcome: &'static str, took: Duration) {
        self.timed_operations.note(
            op,
            outcome,
            took,
            || self.operation_seconds.get_or_create_owned(&Op { op }),
            || {
                self.operations
                    .get_or_create_owned(&Operation { op, outcome })
            },
        );
    }

    pub(crate) fn request(&self, method: &'static str, route: &str, status: u16, took: Duration) {
        self.timed_requests.note(
            route,
            (method, status),
            took,
            || {
                let route = route.to_owned();
                self.request_seconds
                    .get_or_create_owned(&RouteLabels { route })
            },
            || {
                let route = route.to_owned();
                self.requests.get_or_create_owned(&Request {
                    method,
                    route,
                    status,
                })
            },
        );
    }

    /// How many events of a kind there were.
    fn events_of(&self, kind: lease::EventKind) -> &Counter {
        self.counted_events[kind as usize].get_or_init(|| {
            let event = kind.as_str();
            self.events.get_or_create_owned(&EventLabels { event })
        })
    }

    pub(crate) fn event(&self, event: &lease::Event) {
        let kind = event.kind;
        self.events_of(kind).inc();
        if kind == lease::EventKind::LeaseAcquired {
            self.live_leases.inc();
            self.counted(event.key.kind(), 1);
        } else if kind.ends_lease() {
            self.live_leases.dec();
            self.counted(event.key.kind(), -1);
        }
        if let (lease::EventKind::LeaseExpired, Some(lease)) = (kind, &event.lease) {
            let late_ms = event.at.since(lease.expires_at);
            self.expiry_lateness.observe(late_ms as f64 / 1e3);
        }
    }

    /// So many leases were kept by this server: too frequent to be watched for.
    pub(crate) fn renewed(&self, leases: u64) {
        if leases > 0 {
            self.events_of(lease::EventKind::LeaseRenewed)
                .inc_by(leases);
        }
    }

    /// Begins anew with what is live.
    pub(crate) fn set_live_leases<'a>(&self, keys: impl Iterator<Item = &'a lease::Key>) {
        self.kinds
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
        self.live_by_kind.clear();
        let mut all = 0;
        for key in keys {
            all += 1;
            self.counted(key.kind(), 1);
        }
        self.live_leases.set(all);
    }

    /// So many more of a kind are live.
    fn counted(&self, kind: &str, more: i64) {
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(live) = kinds.get(kind) {
            live.inc_by(more);
            return;
        }
        let kind = if kinds.len() < MAX_KINDS {
            kind
        } else {
            OTHER_KINDS
        };
        let labels = KindLabels {
            kind: kind.to_owned(),
        };
        let live = self.live_by_kind.get_or_create_owned(&labels);
        kinds.entry(labels.kind).or_insert(live).inc_by(more);
    }

    pub(crate) fn store_up(&self, up: bool) {
        self.store_up.set(i64::from(up));
    }

    pub(crate) fn store_answered(&self, took: Duration) {
        self.store_seconds.observe(took.as_secs_f64());
    }

    pub(crate) fn history(&self, events: u64) {
        self.history.set(i64::try_from(events).unwrap_or(i64::MAX));
    }

    /// How many runners there are, by status.
    pub(crate) fn runners(&self, counts: &BTreeMap<&'static str, i64>) {
        for status in RUNNERS {
            let count = counts.get(status).copied().unwrap_or_default();
            self.runners
                .get_or_create(&StatusLabels { status })
                .set(count);
        }
    }

    /// Everything there is, each with made-up figures: for the reference page, and for checks of what is
    /// written.
    #[doc(hidden)]
    pub fn example() -> String {
        let it = Self::new();
        let figures = crate::outbox::Figures::default();
        it.register(|registry| figures.register(registry));
        crate::routes::v3::example(&it);
        let took = Duration::from_millis(1);
        it.operation("acquire", "granted", took);
        it.request("GET", "/healthz", 200, took);
        it.counted("job", 1);
        it.unowned(&BTreeMap::new());
        it.runners(&BTreeMap::new());
        it.turned_away("acquire");
        it.events_of(lease::EventKind::LeaseAcquired).inc();
        it.text()
    }

    /// How many cameras nobody has, by reason: all of them, and those for long.
    pub(crate) fn unowned(&self, counts: &BTreeMap<&'static str, (i64, i64)>) {
        for reason in UNOWNED {
            let (all, long) = counts.get(reason).copied().unwrap_or_default();
            let labels = UnownedLabels { reason };
            self.unowned.get_or_create(&labels).set(all);
            self.unowned_long.get_or_create(&labels).set(long);
        }
    }

    pub(crate) fn turned_away(&self, class: &'static str) {
        self.shed.get_or_create(&ShedLabels { class }).inc();
    }

    pub(crate) fn waiter(&self) -> Open {
        open(&self.waiters)
    }

    pub(crate) fn watcher(&self) -> Open {
        open(&self.watchers)
    }

    pub(crate) fn holder_stream(&self) -> Open {
        open(&self.holder_streams)
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

fn open(gauge: &Gauge) -> Open {
    gauge.inc();
    Open(gauge.clone())
}
