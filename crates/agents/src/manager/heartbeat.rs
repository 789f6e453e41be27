//! The runner's heartbeat: registers, renews, and learns what to take, what to give up and what changed.
//! And the control plane's stream of changes, which makes the next heartbeat come at once.

use std::sync::Arc;

use futures_util::StreamExt as _;
use lease::{
    Authority as _, Event, EventKind, Notice,
    registry::{CAMERA, RUNNER, ZONE},
};
use leasehold_api::{Code, RunnerHeartbeatRequest};
use leasehold_client::Outcome;
use serde_json::json;

use super::core::Core;

/// The first pause after a failure.
const FIRST_PAUSE_MS: u64 = 250;
/// Several changes that come together are answered by one heartbeat.
const GATHER_MS: u64 = 15;
/// Between two batches of a drain: time for their next holders to take them.
const DRAIN_PAUSE_MS: u64 = 300;
/// The longest pause before the stream is opened again.
const LONGEST_PAUSE_MS: u64 = 5_000;

/// A pause that doubles up to `most`, shortened at random by up to a half: those who failed together do
/// not come back together.
pub(super) fn pause_ms(failures: u32, most: u64) -> u64 {
    let full = FIRST_PAUSE_MS
        .saturating_mul(1 << failures.min(16))
        .clamp(1, most.max(1));
    full - rand::random_range(0..=full / 2)
}

pub(super) async fn run(core: Arc<Core>) {
    let mut failures = 0;
    loop {
        let interval = core.settings.load().heartbeat_ms();
        let done = if core.is_registered() {
            beat(&core).await
        } else {
            register(&core).await
        };
        let leaves = {
            let state = core.state();
            state.draining && !state.held.is_empty()
        };
        let wait = if done && leaves {
            DRAIN_PAUSE_MS
        } else if done {
            failures = 0;
            // Up to a tenth early, so that a fleet that started together does not beat together.
            interval - rand::random_range(0..=interval / 10)
        } else {
            failures += 1;
            pause_ms(failures, interval)
        };
        if !done || core.is_registered() {
            tokio::select! {
                () = core.beat.notified() => core.sleep_ms(GATHER_MS).await,
                () = core.sleep_ms(wait) => {}
            }
        }
    }
}

/// True when this runner is registered now; the first heartbeat follows at once.
async fn register(core: &Core) -> bool {
    match core.plane.register(&core.registration()).await {
        Outcome::Yes(runner) => {
            let mut state = core.state();
            state.registered = true;
            state.validated = false;
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
            tracing::warn!(%error, "control plane out of reach; waiting for it");
            false
        }
    }
}

async fn beat(core: &Core) -> bool {
    let leases = core.leases();
    let views = core.views();
    let workers = views.iter().filter(|view| view.worker_id.is_some()).count();
    let restarts: u64 = views.iter().map(|view| view.restarts).sum();
    let metrics = json!({"workers": workers, "worker_restarts": restarts});
    let request = RunnerHeartbeatRequest {
        current_load: u32::try_from(leases.len()).unwrap_or(u32::MAX),
        metrics: metrics.as_object().cloned().unwrap_or_default(),
        active_leases: Vec::new(),
        incarnation: Some(core.plane.holder().incarnation.as_str().to_owned()),
    };
    match core.plane.heartbeat(&request, &leases).await {
        Outcome::Yes(answer) => {
            core.heard(&answer);
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

/// Whether a change may concern this manager.
fn concerns(core: &Core, event: &Event) -> bool {
    let kind = event.key.kind();
    match event.kind {
        EventKind::RecordPut | EventKind::RecordRemoved => {
            let settings = core.settings.load();
            let prefix = format!("{}/{}/", settings.tenant_id, settings.site_id);
            [CAMERA, ZONE, RUNNER].contains(&kind) && event.key.id().starts_with(&prefix)
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
    let mut failures = 0;
    loop {
        if core.is_registered() && !core.plane.is_plain() {
            match core.plane.watch(None).await {
                Ok(mut changes) => {
                    core.beat.notify_one();
                    while let Some(Ok(notice)) = changes.next().await {
                        failures = 0;
                        let wakes = match notice {
                            Notice::Event(event) => concerns(&core, &event),
                            Notice::Snapshot(_) => true,
                        };
                        if wakes {
                            core.beat.notify_one();
                        }
                    }
                }
                Err(lease::Error::Unsupported(_) | lease::Error::Denied(_)) => {
                    tracing::info!(
                        "no stream of changes; free cameras are looked for in intervals"
                    );
                    std::future::pending::<()>().await;
                }
                Err(error) => tracing::debug!(%error, "no stream of changes"),
            }
            failures += 1;
        }
        core.sleep_ms(pause_ms(failures, LONGEST_PAUSE_MS)).await;
    }
}
