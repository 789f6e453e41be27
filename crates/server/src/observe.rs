//! What the server's own watch shows: counted, and logged where a person would want to know.

use lease::{BootMillis, Event, EventKind};

use crate::metrics::Metrics;

/// This many leases that expire within [`MASS_MS`] are news: a host died, or a network was cut.
const MASS: u64 = 20;
/// How long expiries are counted together.
const MASS_MS: u64 = 1_000;

/// Follows the server's own watch.
pub(crate) struct Observer {
    metrics: Metrics,
    /// When the present run of expiries began here, and how many there were.
    expiring: Option<(BootMillis, u64)>,
    away: bool,
}

impl Observer {
    pub fn new(metrics: Metrics) -> Self {
        Self {
            metrics,
            expiring: None,
            away: false,
        }
    }

    pub fn event(&mut self, event: &Event, now: BootMillis) {
        self.metrics.event(event);
        let Some(lease) = &event.lease else { return };
        let reason = event.detail.as_deref().unwrap_or_default();
        match event.kind {
            EventKind::LeaseRevoked => {
                tracing::info!(key = %event.key, holder = %lease.holder, token = %lease.token, reason, "lease revoked");
            }
            // Somebody took it while it was live, which only force can.
            EventKind::LeaseStolen if event.at < lease.expires_at => {
                tracing::info!(key = %event.key, from = %lease.holder, token = %lease.token, reason, "lease taken by force");
            }
            EventKind::LeaseExpired => {
                let (since, count) = self.expiring.unwrap_or((now, 0));
                self.expiring = Some((since, count + 1));
            }
            _ => {}
        }
    }

    /// When it shows whether many expired together: then [`Observer::settle`] is to be called.
    pub fn settles_at(&self) -> Option<BootMillis> {
        self.expiring.map(|(since, _)| since.plus(MASS_MS))
    }

    pub fn settle(&mut self) {
        if let Some((_, count)) = self.expiring.take()
            && count >= MASS
        {
            tracing::info!(count, "many leases expired together");
        }
    }

    pub fn interrupted(&mut self, error: &lease::Error) {
        if !std::mem::replace(&mut self.away, true) {
            tracing::warn!(%error, "store unreachable");
        }
        self.metrics.store_up(false);
    }

    pub fn resynced(&mut self) {
        if std::mem::take(&mut self.away) {
            tracing::info!("store reachable again");
        }
        self.metrics.store_up(true);
    }
}
