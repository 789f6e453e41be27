//! What a slot shows of itself, and what other tasks have of it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use lease::BootMillis;
use leasehold_api::worker::{CameraReport, WorkerHeartbeat};
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::sync::watch;

use super::{Desired, Slot};

/// What a slot shows of itself. Never a camera's login.
#[derive(Clone, Debug, Default, Serialize)]
pub(in super::super) struct View {
    pub worker_id: Option<String>,
    pub shard_id: String,
    pub pid: Option<u32>,
    pub port: Option<u16>,
    /// `stopped`, `starting`, `healthy`, `unhealthy` or `stopping`.
    pub state: &'static str,
    pub ready: bool,
    pub restarts: u64,
    /// Quick crashes in a row.
    pub crashes: u32,
    pub heartbeat_age_ms: Option<u64>,
    pub cameras: Vec<String>,
    pub stats: Map<String, Value>,
    pub reports: BTreeMap<String, CameraReport>,
    #[serde(skip)]
    pub(super) pushed_at: Option<BootMillis>,
    /// The worker that takes over at this moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub successor: Option<String>,
}

/// What other tasks have of a slot.
#[derive(Clone)]
pub(in super::super) struct Handle {
    pub desired: watch::Sender<Desired>,
    pub(super) view: Arc<Mutex<View>>,
}

impl Handle {
    /// What the slot shows of itself.
    pub fn view(&self) -> View {
        self.lock().clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, View> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A worker pushed a heartbeat. False when it is not the one that runs here.
    pub fn heartbeat(&self, worker: &str, now: BootMillis, body: WorkerHeartbeat) -> bool {
        let mut view = self.lock();
        let known =
            view.worker_id.as_deref() == Some(worker) || view.successor.as_deref() == Some(worker);
        if known {
            view.pushed_at = Some(now);
            view.stats = body.stats;
            view.reports = body.cameras;
        }
        known
    }
}

impl Slot {
    pub(super) fn handle(&self) -> View {
        self.view
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Brings what others see up to date.
    pub(super) fn show(&self, desired: &Desired) {
        let now = self.context.clock.boot();
        let mut view = self.view.lock().unwrap_or_else(PoisonError::into_inner);
        view.restarts = self.restarts;
        view.crashes = self.breaker.crashes();
        view.successor = self.green.as_ref().map(|(green, _)| green.id.clone());
        let Some(process) = &self.process else {
            view.worker_id = None;
            view.pid = None;
            view.port = None;
            view.state = "stopped";
            view.ready = false;
            view.cameras.clear();
            view.heartbeat_age_ms = None;
            return;
        };
        if view.worker_id.as_ref() != Some(&process.id) {
            view.worker_id = Some(process.id.clone());
            view.pushed_at = None;
            view.stats.clear();
            view.reports.clear();
        }
        view.pid = process.pid;
        view.port = Some(process.port);
        let silent_ms = now.since(process.last_seen);
        view.heartbeat_age_ms = process.up.then_some(silent_ms);
        view.state = if process.ending.is_some() || desired.stop.is_some() {
            "stopping"
        } else if !process.up {
            "starting"
        } else if silent_ms < process.command.heartbeat_timeout_seconds.millis() {
            "healthy"
        } else {
            "unhealthy"
        };
        view.ready = view.state == "healthy";
        if view.cameras.len() != process.running.len()
            || view.cameras.iter().ne(process.running.keys())
        {
            view.cameras = process.running.keys().cloned().collect();
        }
    }
}
