//! How long stores take to keep what was decided. One figure per process: a process works on one store.

use std::{sync::LazyLock, time::Duration};

use prometheus_client::{metrics::histogram::Histogram, registry::Registry};

/// From a fast disk to one that is about to fail.
const SECONDS: [f64; 13] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0,
];

static COMMITS: LazyLock<Histogram> = LazyLock::new(|| Histogram::new(SECONDS));

/// Registers what stores count.
pub fn register_metrics(registry: &mut Registry) {
    registry.register(
        "leasehold_store_commit_seconds",
        "How long the store took to keep a batch of changes: writing and syncing an embedded store, one call of PostgreSQL or Redis",
        COMMITS.clone(),
    );
}

/// A batch of changes is kept.
pub(crate) fn committed(took: Duration) {
    COMMITS.observe(took.as_secs_f64());
}
