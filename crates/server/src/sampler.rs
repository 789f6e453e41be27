//! Samples, for the metrics, what no event reports.

use lease::{EventQuery, Revision};
use leasehold_clock::Ticks;
use tokio::time::Instant;

use crate::App;

/// How often, in ms.
const LOOK_MS: u64 = 10_000;

/// Looks until it is dropped.
pub(crate) async fn run(app: App) {
    let mut ticks = Ticks::every(LOOK_MS);
    loop {
        ticks.next(app.clock().as_ref()).await;
        look(&app).await;
    }
}

async fn look(app: &App) {
    let (authority, metrics) = (app.authority(), app.metrics());
    let began = Instant::now();
    let answered = authority.now().await.is_ok();
    if answered {
        metrics.store_answered(began.elapsed());
    }
    metrics.store_up(answered && !authority.capabilities().degraded);
    let query = EventQuery {
        after: Revision::ZERO,
        limit: 1,
        ..EventQuery::default()
    };
    if let Ok(page) = authority.events(query).await {
        let kept = (page.newest.get() + 1).saturating_sub(page.oldest.get());
        metrics.history(kept);
    }
}
