//! The runner's heartbeat: registers, renews, and learns what to take, what to give up and what changed.
//! And the control plane's stream of changes, which makes the next heartbeat come immediately.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
};

use lease::{
    Event, EventKind, Watching,
    registry::{CAMERA, DEPLOYMENT, RUNNER, ZONE},
};
use leasehold_api::{CameraStatus, Code, RunnerHeartbeatRequest};
use leasehold_client::{Change, Follower, Outcome};
use leasehold_clock::Backoff;
use serde_json::json;

use super::{core::Core, handover, slot};

/// The first pause after a failure.
pub(super) const FIRST_PAUSE_MS: u64 = 500;
/// Several changes that come together are answered by one heartbeat.
const GATHER_MS: u64 = 15;
/// Between two batches of a drain: time for their next holders to take them.
const DRAIN_PAUSE_MS: u64 = 300;
/// How long a control plane that refused its stream of changes is not asked for it again.
const REFUSED_PAUSE_MS: u64 = 60_000;
/// The longest pause after a failure, unless the interval is shorter.
pub(super) const LONGEST_PAUSE_MS: u64 = 30_000;

pub(super) async fn run(core: Arc<Core>) {
    let mut backoff = Backoff::new(FIRST_PAUSE_MS, LONGEST_PAUSE_MS);
    loop {
        let interval = core.settings.load().heartbeat_ms();
        let done = if core.is_registered() {
            beat(&core).await
        } else {
            register(&core).await
        };
        let leaves = {
            let state = core.state();
            // What is handed over brings the next heartbeat by itself.
            state.draining && !state.held.is_empty() && state.leaving.is_empty()
        };
        let wait = if done && leaves {
            DRAIN_PAUSE_MS
        } else if done {
            backoff.reset();
            // Up to a tenth early, so that a fleet that started together does not beat together.
            interval - rand::random_range(0..=interval / 10)
        } else {
            backoff.next_within_ms(interval)
        };
        if !done || core.is_registered() {
            tokio::select! {
                () = core.beat.notified() => core.sleep_ms(GATHER_MS).await,
                () = core.sleep_ms(wait) => {}
            }
        }
    }
}

/// True when this runner is registered now; the first heartbeat follows immediately.
async fn register(core: &Core) -> bool {
    match core.plane.register(&core.registration()).await {
        Outcome::Yes(runner) => {
            let mut state = core.state();
            state.registered = true;
            state.validated = None;
            drop(state);
            tracing::info!(
                runner = runner.runner_id,
                capacity = runner.capacity,
                plain = core.plane.is_plain(),
                "registered"
            );
            core.beat.notify_one();
            core.sync.notify_one();
            true
        }
        Outcome::No(error) => {
            // Another live incarnation, or a wrong key: both may pass, neither by haste.
            tracing::warn!(%error, "not registered");
            false
        }
        Outcome::Unknown(error) => {
            tracing::warn!(%error, "control plane unreachable; waiting for it");
            false
        }
    }
}

async fn beat(core: &Arc<Core>) -> bool {
    let leases = core.leases();
    let views = core.views();
    let workers = views.iter().filter(|view| view.worker_id.is_some()).count();
    let restarts: u64 = views.iter().map(|view| view.restarts).sum();
    let mut metrics = json!({"workers": workers, "worker_restarts": restarts});
    let load = core.host_load.load(Ordering::Relaxed);
    if load <= 1000 && core.settings.load().report_load {
        metrics["load"] = json!(f64::from(load) / 1000.0);
    }
    let request = RunnerHeartbeatRequest {
        current_load: u32::try_from(leases.len()).unwrap_or(u32::MAX),
        metrics: metrics.as_object().cloned().unwrap_or_default(),
        active_leases: Vec::new(),
        incarnation: Some(core.plane.holder().incarnation.as_str().to_owned()),
        camera_status: camera_status(&views),
        revision: Some(core.revision.load(Ordering::Relaxed)).filter(|it| *it > 0),
    };
    let outages = core.contact.outages();
    match core.plane.heartbeat(&request, &leases).await {
        Outcome::Yes(answer) => {
            core.heard(&answer, outages);
            true
        }
        Outcome::No(error) => {
            tracing::warn!(%error, "heartbeat refused");
            if matches!(
                error.code(),
                Some(Code::RunnerNotFound | Code::RunnerAlreadyRegistered)
            ) {
                core.state().registered = false;
            }
            false
        }
        Outcome::Unknown(error) => {
            tracing::debug!(%error, "heartbeat not answered");
            core.state().wanted.clear();
            false
        }
    }
}

/// How each camera does: what its worker reports about it, or else that it works when its worker took it
/// and is ready.
pub(super) fn camera_status(views: &[slot::View]) -> BTreeMap<String, CameraStatus> {
    let mut found = BTreeMap::new();
    for view in views {
        if view.ready && view.state == "healthy" && view.reports.is_empty() {
            for camera in &view.cameras {
                let status = CameraStatus {
                    state: "working".to_owned(),
                    error: None,
                };
                found.insert(camera.clone(), status);
            }
        }
        for (camera, report) in &view.reports {
            let status = CameraStatus {
                state: report.state.clone(),
                error: report.error.clone(),
            };
            found.insert(camera.clone(), status);
        }
    }
    found
}

/// Whether a change may concern this manager.
fn concerns(core: &Core, event: &Event) -> bool {
    let kind = event.key.kind();
    match event.kind {
        EventKind::RecordPut | EventKind::RecordRemoved => {
            let settings = core.settings.load();
            let prefix = format!("{}/{}/", settings.tenant_id, settings.site_id);
            [CAMERA, ZONE, RUNNER, DEPLOYMENT].contains(&kind)
                && event.key.id().starts_with(&prefix)
        }
        ended if ended.ends_lease() && [CAMERA, RUNNER].contains(&kind) => event
            .lease
            .as_ref()
            .is_none_or(|lease| lease.holder != *core.plane.holder()),
        _ => false,
    }
}

/// Follows the control plane's changes where it has a stream; everything also comes with the heartbeats.
pub(super) async fn follow_events(core: Arc<Core>) {
    loop {
        while !core.is_registered() || core.plane.is_plain() {
            core.sleep_ms(FIRST_PAUSE_MS).await;
        }
        let error = follow(&core).await;
        tracing::info!(%error, "no stream of changes; polling for free cameras");
        // A server without streams may get them, and a credential that was refused may be replaced.
        tokio::select! {
            () = core.replaced.notified() => {}
            () = core.sleep_ms(REFUSED_PAUSE_MS) => {}
        }
    }
}

/// Follows until the control plane definitely refuses.
async fn follow(core: &Arc<Core>) -> lease::Error {
    let watching = Watching::kinds([CAMERA, ZONE, RUNNER, DEPLOYMENT]);
    let clock = core.context.clock.clone();
    let mut changes = Follower::new(core.plane.clone(), clock, watching);
    loop {
        let wakes = match changes.next().await {
            Ok(Change::Event(event)) => {
                core.revision.store(event.revision.get(), Ordering::Relaxed);
                handover::heard(core, &event);
                concerns(core, &event)
            }
            Ok(Change::Resync(_)) => {
                // Of another history, perhaps.
                core.revision.store(0, Ordering::Relaxed);
                true
            }
            Ok(Change::Progress(_)) => false,
            Ok(Change::Interrupted(error)) => {
                tracing::debug!(%error, "no stream of changes");
                false
            }
            Err(error) => return error,
        };
        if wakes {
            core.beat.notify_one();
        }
    }
}
