//! One place for a worker: keeps a process running that has exactly the cameras it should have, inside
//! their deadlines.

mod calls;
mod swap;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use http::StatusCode;
use lease::{BootMillis, Standing};
use leasehold_api::worker::{CameraReport, WorkerHeartbeat};
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::sync::{mpsc, watch};

use super::{
    Context,
    breaker::{Breaker, Verdict},
    process::{Claim, Ending, Process, Shard, Start, same},
    settings::WorkerSettings,
    timing::Timing,
};
use crate::supervise::{Cause, Exit};
use calls::{Note, RETRY_MS, TERMINATE_GRACE, check, end, post, stop_process};
use swap::Swap;

/// Answers of workers that wait to be looked at; each process has at most three calls under way.
const NOTES: usize = 32;

/// How a worker is to end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Debug)]
pub(super) enum Stop {
    /// It finishes what it has.
    Drain,
    /// It is killed.
    Now,
}

/// What a slot should do.
#[derive(Clone)]
pub(super) struct Desired {
    pub cameras: Shard,
    pub command: Arc<WorkerSettings>,
    pub timing: Timing,
    /// Whether a worker runs here also without a camera: one is expected.
    pub warm: bool,
    pub stop: Option<Stop>,
}

/// What a slot shows of itself. Never a camera's login.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct View {
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
    pushed_at: Option<BootMillis>,
    /// The worker that takes over at this moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub successor: Option<String>,
}

/// What other tasks have of a slot.
#[derive(Clone)]
pub(super) struct Handle {
    pub desired: watch::Sender<Desired>,
    view: Arc<Mutex<View>>,
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

struct Slot {
    index: usize,
    context: Arc<Context>,
    desired: watch::Receiver<Desired>,
    notes: mpsc::Sender<Note>,
    process: Option<Process>,
    /// The process of the new command, while both are there.
    green: Option<(Process, Swap)>,
    /// The command that did not become ready.
    refused: Option<Arc<WorkerSettings>>,
    breaker: Breaker,
    start_at: BootMillis,
    started: u64,
    generation: u64,
    restarts: u64,
    /// The cameras that only this slot may run.
    claims: BTreeMap<String, Arc<Claim>>,
    view: Arc<Mutex<View>>,
}

/// Starts a slot. It ends after it was told to stop, or with its last handle.
pub(super) fn spawn(
    index: usize,
    context: Arc<Context>,
    desired: Desired,
    tasks: &tokio_util::task::TaskTracker,
) -> Handle {
    let (sender, receiver) = watch::channel(desired);
    let view = Arc::new(Mutex::new(View {
        shard_id: format!("{}-{index}", context.runner_id),
        state: "stopped",
        ..View::default()
    }));
    let (notes, received) = mpsc::channel(NOTES);
    let slot = Slot {
        index,
        start_at: context.clock.boot(),
        context,
        desired: receiver,
        notes,
        process: None,
        green: None,
        refused: None,
        breaker: Breaker::default(),
        started: 0,
        generation: 0,
        restarts: 0,
        claims: BTreeMap::new(),
        view: view.clone(),
    };
    tasks.spawn(slot.run(received));
    Handle {
        desired: sender,
        view,
    }
}

async fn ended(process: Option<&mut Process>) -> Exit {
    match process {
        Some(process) => process.child.wait().await,
        None => std::future::pending().await,
    }
}

impl Slot {
    async fn run(mut self, mut notes: mpsc::Receiver<Note>) {
        let mut orphaned = false;
        loop {
            let mut desired = self.desired.borrow_and_update().clone();
            if orphaned {
                desired.stop = Some(Stop::Now);
            }
            self.look(&desired);
            self.show(&desired);
            if desired.stop.is_some() && self.process.is_none() && self.green.is_none() {
                return;
            }
            let now = self.context.clock.boot();
            let look = self
                .context
                .clock
                .sleep_until(now.plus(desired.timing.look_ms()));
            tokio::select! {
                exit = ended(self.process.as_mut()) => self.process_ended(exit, &desired),
                exit = ended(self.green.as_mut().map(|(green, _)| green)) => self.green_ended(exit),
                Some(note) = notes.recv() => self.heard(&note),
                changed = self.desired.changed(), if !orphaned => orphaned = changed.is_err(),
                () = look => {}
            }
        }
    }

    /// What may and should run here at this moment.
    fn wanted(&mut self, now: BootMillis, desired: &Desired) -> Shard {
        let mut wanted = Shard::new();
        for (name, it) in &desired.cameras {
            let trusted = it.guard.standing() != Standing::Over
                && now < desired.timing.take_away_at(it.guard.stops_at());
            if trusted && it.claim.take(self.index) {
                self.claims.insert(name.clone(), it.claim.clone());
                wanted.insert(name.clone(), it.clone());
            }
        }
        let processes = self.process.iter().chain(self.green.iter().map(|it| &it.0));
        let covered: BTreeSet<&String> = processes
            .flat_map(|process| process.covered().map(|(name, _)| name))
            .collect();
        let index = self.index;
        self.claims.retain(|name, claim| {
            let kept = wanted.contains_key(name) || covered.contains(name);
            if !kept {
                claim.free(index);
            }
            kept
        });
        wanted
    }

    /// Does whatever is to be done now.
    fn look(&mut self, desired: &Desired) {
        let now = self.context.clock.boot();
        let wanted = self.wanted(now, desired);
        if self.process.is_none() {
            if self.green.is_none()
                && desired.stop.is_none()
                && (!wanted.is_empty() || desired.warm)
                && now >= self.start_at
            {
                self.start(wanted, desired);
            } else {
                self.tend_green(now, &wanted, desired);
            }
            return;
        }
        self.tend(now, &wanted, desired);
        self.tend_green(now, &wanted, desired);
    }

    fn next_id(&mut self) -> String {
        self.started += 1;
        format!("{}-{}-{}", self.context.runner_id, self.index, self.started)
    }

    fn launch(
        &mut self,
        set: Shard,
        publish: bool,
        desired: &Desired,
    ) -> Result<Process, crate::supervise::Error> {
        self.generation += 1;
        let id = self.next_id();
        let start = Start {
            index: self.index,
            id,
            generation: self.generation,
            command: &desired.command,
            set,
            publish,
            timing: desired.timing,
        };
        let process = Process::start(&self.context, start)?;
        tracing::info!(
            worker = process.id,
            port = process.port,
            cameras = process.running.len(),
            "worker started"
        );
        Ok(process)
    }

    fn start(&mut self, set: Shard, desired: &Desired) {
        match self.launch(set, true, desired) {
            Ok(process) => self.process = Some(process),
            Err(error) => {
                tracing::error!(shard = self.index, %error, "worker not started");
                self.crashed(0, "not_started", desired);
            }
        }
    }

    /// Sees to the process that runs.
    fn tend(&mut self, now: BootMillis, wanted: &Shard, desired: &Desired) {
        let swapping = self
            .green
            .as_ref()
            .is_some_and(|(_, swap)| *swap != Swap::Preparing);
        let pushed_at = self.handle().pushed_at;
        let Some(process) = &mut self.process else {
            return;
        };
        process.order_deadline(now, desired.timing);
        process.write_fences(&self.context);
        if let Some(at) = pushed_at
            && at > process.last_seen
        {
            process.last_seen = at;
            process.up = true;
        }
        check(&self.context, &self.notes, process, now, false);
        if process.ending.is_some() && desired.stop != Some(Stop::Now) {
            return;
        }
        if let Some(stop) = desired.stop {
            stop_process(&self.context, &self.notes, process, stop, now);
            return;
        }
        let grace = process.command.start_grace_seconds.millis();
        let timeout = process.command.heartbeat_timeout_seconds.millis();
        let silent_ms = now.since(process.last_seen);
        let deaf_ms = process.deaf_since.map_or(0, |since| now.since(since));
        let starting = now.since(process.started_at) <= grace;
        if !starting && (!process.up || silent_ms > timeout || deaf_ms > timeout) {
            tracing::warn!(worker = process.id, silent_ms, "worker unhealthy; killed");
            end(process, Ending::Unhealthy, Duration::ZERO);
            return;
        }
        let settled = same(&process.running, wanted);
        if swapping || process.pending.is_some() || !process.up || now < process.retry_at {
            return;
        }
        if settled {
            if wanted.is_empty() && !desired.warm {
                end(process, Ending::Idle, TERMINATE_GRACE);
            } else if process.command != desired.command
                && !wanted.is_empty()
                && self.green.is_none()
                && self.refused.as_ref() != Some(&desired.command)
            {
                self.begin_swap(wanted.clone(), desired);
            }
        } else if process.takes_changes {
            self.generation += 1;
            let generation = self.generation;
            post(
                &self.context,
                &self.notes,
                process,
                self.index,
                generation,
                wanted.clone(),
                desired.timing,
            );
        } else {
            tracing::info!(
                worker = process.id,
                "worker takes no changes while it runs; started again"
            );
            let grace = Duration::from_millis(process.command.drain_grace_seconds.millis());
            end(process, Ending::Restart, grace.min(TERMINATE_GRACE));
        }
    }

    fn process_ended(&mut self, exit: Exit, desired: &Desired) {
        let Some(process) = self.process.take() else {
            return;
        };
        let now = self.context.clock.boot();
        let lived_ms = now.since(process.started_at);
        self.start_at = now;
        let reason = process.ending.map_or(exit.cause.as_str(), Ending::word);
        tracing::info!(
            worker = process.id,
            end = %exit.end,
            reason,
            lived_ms,
            "worker ended"
        );
        match (process.ending, exit.cause) {
            (Some(Ending::Unhealthy), _) => self.crashed(lived_ms, "unhealthy", desired),
            (Some(_), _) => {}
            // It was asked to finish, and did.
            (None, Cause::Own) if desired.stop.is_some() => {}
            (None, Cause::Deadline) => {
                tracing::warn!(
                    worker = process.id,
                    "worker stopped at its leases' deadline"
                );
                self.restarted("deadline");
            }
            (None, _) => self.crashed(lived_ms, "crashed", desired),
        }
    }

    fn restarted(&mut self, reason: &'static str) {
        self.restarts += 1;
        let shard = format!("{}-{}", self.context.runner_id, self.index);
        self.context.metrics.restarted(&shard, reason);
    }

    fn crashed(&mut self, lived_ms: u64, reason: &'static str, desired: &Desired) {
        self.restarted(reason);
        let now = self.context.clock.boot();
        let quick_ms = desired.command.start_grace_seconds.millis();
        match self.breaker.crashed(lived_ms, quick_ms) {
            Verdict::Restart { after_ms } => {
                self.start_at = now.plus(after_ms);
            }
            Verdict::GiveUp => {
                tracing::error!(
                    shard = self.index,
                    "worker crashed again and again; its cameras go back to the pool"
                );
                self.start_at = now.plus(RETRY_MS);
                // A full queue has this slot in it already, or will be asked again by the next crash.
                let _ = self.context.gave_up.try_send(self.index);
            }
        }
    }

    fn heard(&mut self, note: &Note) {
        let now = self.context.clock.boot();
        let id = match note {
            Note::Health { id, .. }
            | Note::Ready { id, .. }
            | Note::Posted { id, .. }
            | Note::Drained { id, .. } => id,
        };
        let green = self.green.as_mut().map(|(green, _)| green);
        let found = self
            .process
            .iter_mut()
            .chain(green)
            .find(|process| process.id == *id);
        let Some(process) = found else { return };
        match note {
            Note::Health { ok, .. } => {
                process.checking = false;
                if *ok {
                    process.up = true;
                    process.last_seen = now;
                }
            }
            Note::Ready { ok, .. } => {
                process.checking = false;
                process.up |= *ok;
                process.ready = *ok;
            }
            Note::Drained { ok, .. } => {
                if !*ok {
                    process.drain_until = Some(now);
                }
            }
            Note::Posted { outcome, .. } => {
                let Some(pending) = process.pending.take() else {
                    return;
                };
                match *outcome {
                    Some(status) if status.is_success() => {
                        if pending.removes {
                            let took_ms = now.since(pending.sent);
                            self.context.metrics.takeaway.observe(took_ms as f64 / 1e3);
                        }
                        process.running = pending.set;
                        process.publish = pending.publish;
                        process.last_seen = now;
                        process.deaf_since = None;
                    }
                    outcome => {
                        let lacks = outcome.is_some_and(|status| {
                            matches!(
                                status,
                                StatusCode::NOT_FOUND
                                    | StatusCode::METHOD_NOT_ALLOWED
                                    | StatusCode::NOT_IMPLEMENTED
                            )
                        });
                        process.takes_changes &= !lacks;
                        process.deaf_since.get_or_insert(pending.sent);
                        tracing::warn!(
                            worker = process.id,
                            status = outcome.map(|status| status.as_u16()),
                            "worker did not take its cameras"
                        );
                        // It may have taken a part of them.
                        if !lacks {
                            for (name, it) in pending.set {
                                process.running.entry(name).or_insert(it);
                            }
                        }
                        process.retry_at = now.plus(RETRY_MS);
                    }
                }
            }
        }
    }

    fn handle(&self) -> View {
        self.view
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Brings what others see up to date.
    fn show(&mut self, desired: &Desired) {
        let now = self.context.clock.boot();
        let mut view = self.view.lock().unwrap_or_else(PoisonError::into_inner);
        view.restarts = self.restarts;
        view.crashes = self.breaker.crashes();
        view.successor = self.green.as_ref().map(|(green, _)| green.id.clone());
        let Some(process) = &mut self.process else {
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
        process.pid = process.pid.or(process.child.pid());
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
