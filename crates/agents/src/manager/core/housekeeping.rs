//! Figures, crash loops, how busy the host is, and the report of a control plane that goes away or comes back.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
};

use tokio::sync::mpsc;

use super::{
    super::{heartbeat, load::HostLoad, metrics::count, slot},
    Core, lock,
};

/// How often figures and the state of the control plane are looked at.
const HOUSEKEEPING_MS: u64 = 500;

/// Looks after everything until it is dropped.
pub(in super::super) async fn housekeep(core: Arc<Core>, mut gave_up: mpsc::Receiver<usize>) {
    let (mut degraded, mut outages) = (false, 0);
    let mut reported = BTreeMap::new();
    let mut host_load = HostLoad::default();
    loop {
        tokio::select! {
            Some(slot) = gave_up.recv() => core.slot_gave_up(slot),
            () = core.sleep_ms(HOUSEKEEPING_MS) => {}
        }
        let load = host_load.look().unwrap_or(u32::MAX);
        core.host_load.store(load, Ordering::Relaxed);
        core.measure();
        // The control plane waits for cameras to work before it shifts more of them.
        let status = heartbeat::camera_status(&core.views());
        if status != reported {
            reported = status;
            core.beat.notify_one();
        }
        let now = core.now();
        core.state().avoid.retain(|_, until| *until > now);
        let ended = |handle: &slot::Handle| handle.desired.is_closed();
        lock(&core.retired).retain(|handle| !ended(handle));
        let failing = core.contact.failing_since().is_some();
        if failing != degraded {
            degraded = failing;
            if degraded {
                tracing::warn!(
                    status = "degraded",
                    "control plane unreachable; cameras continue under their outage policy"
                );
                core.state().wanted.clear();
            } else {
                tracing::info!(
                    status = "ok",
                    "control plane reachable again; validating everything held first"
                );
            }
        }
        // Also after an outage that was too short to be seen here.
        if !failing && outages != core.contact.outages() {
            outages = core.contact.outages();
            core.beat.notify_one();
        }
    }
}

impl Core {
    /// Brings the figures up to date.
    fn measure(&self) {
        let metrics = &self.context.metrics;
        let views = self.views();
        let running = views.iter().filter(|view| view.worker_id.is_some());
        metrics.shards.set(count(running.count()));
        let owned = views.iter().map(|view| view.cameras.len()).sum();
        metrics.owned.set(count(owned));
        let now = self.now();
        let state = self.state();
        metrics.active.set(count(state.held.len()));
        metrics.pending.set(count(state.wanted.len()));
        metrics.desired.set(count(state.catalog.len()));
        metrics
            .draining
            .set(i64::from(state.draining || state.stopping));
        let least = state
            .held
            .values()
            .map(|it| it.assigned.guard.deadline().since(now))
            .min();
        metrics.headroom.set(least.unwrap_or(0) as f64 / 1e3);
        drop(state);
        let failing = self.contact.failing_since().is_some();
        metrics.degraded.set(i64::from(failing));
    }
}
