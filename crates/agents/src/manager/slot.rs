//! One place for a worker: keeps a process running that has exactly the cameras it should have, inside
//! their deadlines.

mod calls;
mod outcomes;
mod swap;
mod view;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use lease::{BootMillis, Standing};
use tokio::sync::{mpsc, watch};

use super::{
    Context,
    breaker::Breaker,
    process::{Claim, Ending, Process, Shard, Start, same},
    settings::WorkerSettings,
    timing::Timing,
};
use crate::supervise::Exit;
use calls::{Note, TERMINATE_GRACE, check, end, post, stop_process};
use swap::Swap;

pub(super) use view::{Handle, View};

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

/// Starts a slot. It ends after it was asked to stop, or with its last handle.
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

/// Waits for the end of a process. Nothing when it is only launched now: its process id is to be shown.
async fn ended(process: Option<&mut Process>) -> Option<Exit> {
    let Some(process) = process else {
        return std::future::pending().await;
    };
    if process.pid.is_none()
        && let Ok(pid) = process.child.started().await
    {
        process.pid = Some(pid);
        return None;
    }
    Some(process.child.wait().await)
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
                exit = ended(self.process.as_mut()) => if let Some(exit) = exit {
                    self.process_ended(exit, &desired);
                },
                exit = ended(self.green.as_mut().map(|(green, _)| green)) => if let Some(exit) = exit {
                    self.green_ended(exit);
                },
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
                "worker does not accept changes while running; restarting"
            );
            let grace = Duration::from_millis(process.command.drain_grace_seconds.millis());
            end(process, Ending::Restart, grace.min(TERMINATE_GRACE));
        }
    }
}
