//! One worker process: its files, its command line, what it runs and until when.

use std::{
    collections::BTreeMap,
    io,
    net::TcpListener,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use lease::{BootMillis, Standing, registry::Camera};
use leasehold_api::worker::{Fence, FenceFile, ShardCamera, ShardConfig, variables};
use leasehold_client::Guard;
use tokio::sync::Notify;

use super::{Context, files, settings::WorkerSettings, timing::Timing};
use crate::supervise::{self, Child, Command, Stream};

/// Which slot may run a camera. A slot claims it before it starts the camera and frees it when the camera
/// has stopped: whatever the plan says meanwhile, a camera is in one worker only.
#[derive(Debug)]
pub(super) struct Claim {
    slot: AtomicUsize,
    freed: Notify,
}

impl Claim {
    const FREE: usize = usize::MAX;
    const CLOSED: usize = usize::MAX - 1;

    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            slot: AtomicUsize::new(Self::FREE),
            freed: Notify::new(),
        })
    }

    /// Whether this slot may run it from now on.
    pub fn take(&self, slot: usize) -> bool {
        match self.change(Self::FREE, slot) {
            Ok(_) => true,
            Err(owner) => owner == slot,
        }
    }

    fn change(&self, from: usize, to: usize) -> Result<usize, usize> {
        self.slot
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
    }

    /// Resolves when no slot runs it any more; none can claim it from then on.
    pub async fn close(&self) {
        loop {
            let freed = self.freed.notified();
            match self.change(Self::FREE, Self::CLOSED) {
                Ok(_) | Err(Self::CLOSED) => return,
                Err(_) => freed.await,
            }
        }
    }

    /// The slot does not run it any more.
    pub fn free(&self, slot: usize) {
        // Somebody else's claim stays.
        if self.change(slot, Self::FREE).is_ok() {
            self.freed.notify_waiters();
        }
    }
}

/// A camera that this manager holds, as a worker gets it. The lease is given back when the last copy
/// is gone: that is, when no worker runs the camera any more.
pub(super) struct Assigned {
    pub camera: Arc<Camera>,
    pub config_version: String,
    pub zone_version: String,
    pub lease_id: String,
    pub guard: Arc<Guard>,
    pub claim: Arc<Claim>,
}

/// The cameras of one worker, by name.
pub(super) type Shard = BTreeMap<String, Arc<Assigned>>;

/// Whether two sets are the very same.
pub(super) fn same(a: &Shard, b: &Shard) -> bool {
    a.len() == b.len()
        && a.iter()
            .zip(b)
            .all(|((a_name, a), (b_name, b))| a_name == b_name && Arc::ptr_eq(a, b))
}

/// Why a process is being ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ending {
    /// It has nothing to do.
    Idle,
    /// It cannot take changes while it runs.
    Restart,
    /// Another one took its place.
    Replaced,
    /// The manager stops.
    Stopping,
    /// It gave no sign of life.
    Unhealthy,
}

impl Ending {
    pub fn word(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Restart => "restart",
            Self::Replaced => "replaced",
            Self::Stopping => "stopping",
            Self::Unhealthy => "unhealthy",
        }
    }
}

/// A new set on its way to the worker.
pub(super) struct Pending {
    pub set: Shard,
    pub sent: BootMillis,
    pub removes: bool,
    pub publish: bool,
}

/// One worker process.
pub(super) struct Process {
    pub id: String,
    pub child: Child,
    pub pid: Option<u32>,
    pub port: u16,
    pub command: Arc<WorkerSettings>,
    pub started_at: BootMillis,
    /// Its HTTP surface answered.
    pub up: bool,
    /// At least four of five cameras work.
    pub ready: bool,
    pub last_seen: BootMillis,
    pub checked_at: BootMillis,
    pub checking: bool,
    /// What it runs, as it last acknowledged.
    pub running: Shard,
    pub publish: bool,
    pub pending: Option<Pending>,
    pub retry_at: BootMillis,
    pub takes_changes: bool,
    /// Since when it does not take its cameras.
    pub deaf_since: Option<BootMillis>,
    pub ending: Option<Ending>,
    pub drain_until: Option<BootMillis>,
    pub terminated: bool,
    /// Since when a lease is over that it still runs under.
    over: BTreeMap<String, BootMillis>,
    ordered: Option<(BootMillis, BootMillis)>,
    fences: FenceFile,
    config_file: PathBuf,
    fence_file: PathBuf,
}

/// What a process is started for.
pub(super) struct Start<'a> {
    pub index: usize,
    pub id: String,
    pub generation: u64,
    pub command: &'a Arc<WorkerSettings>,
    pub set: Shard,
    pub publish: bool,
    pub timing: Timing,
}

impl Process {
    /// Writes its files and starts it under a guardian that knows the first deadline.
    pub fn start(context: &Context, start: Start<'_>) -> Result<Self, supervise::Error> {
        let io_failed = |what| move |source| supervise::Error::Os { what, source };
        let port = free_port().map_err(io_failed("find a free port"))?;
        let now = context.clock.boot();
        let config_file = context.state_dir.join(format!("{}.json", start.id));
        let fence_file = context.state_dir.join(format!("{}.fences.json", start.id));
        let shard_id = format!("{}-{}", context.runner_id, start.index);
        let config = shard_config(
            context,
            &shard_id,
            start.generation,
            &start.set,
            start.publish,
        );
        files::write_json(&config_file, &config).map_err(io_failed("write the worker's config"))?;
        let fences = fences(context, &start.set, start.publish);
        files::write_json(&fence_file, &fences).map_err(io_failed("write the fence file"))?;
        let mut words = command_line(
            start.command,
            &config_file,
            &context.runner_id,
            &shard_id,
            port,
        )
        .into_iter();
        let earliest = start.set.values().map(|it| it.guard.stops_at()).min();
        // One that waits for its first camera has no deadline.
        let never = BootMillis::new(u64::MAX);
        let (ask_at, kill_at) =
            earliest.map_or((never, never), |stops_at| start.timing.stop_at(stops_at));
        let mut command = Command::new(words.next().unwrap_or_default())
            .args(words)
            .env(variables::WORKER_ID, &start.id)
            .env(variables::WORKER_PORT, port.to_string())
            .env(variables::MANAGER_URL, &context.manager_url)
            .env(variables::FENCE_FILE, &fence_file)
            .env("LOG_LEVEL", &start.command.log_level)
            // The manager's death frees its cameras immediately (L15): no time for farewells.
            .orphan_grace(Duration::ZERO)
            .deadline(ask_at, kill_at);
        if let Some(metrics) = context.worker_metrics_port(start.index) {
            command = command.env(variables::WORKER_METRICS_PORT, metrics.to_string());
        }
        for (name, value) in &start.command.environment {
            command = command.env(name, value);
        }
        let mut child = command.spawn(&context.launcher)?;
        let mut lines = child.take_lines();
        let worker = start.id.clone();
        tokio::spawn(async move {
            while let Some(line) = lines.next().await {
                match line.stream {
                    Stream::Out => tracing::info!(worker, stream = "stdout", "{}", line.text),
                    Stream::Err => tracing::info!(worker, stream = "stderr", "{}", line.text),
                }
            }
        });
        Ok(Self {
            id: start.id,
            child,
            pid: None,
            port,
            command: start.command.clone(),
            started_at: now,
            up: false,
            ready: false,
            last_seen: now,
            checked_at: now,
            checking: false,
            running: start.set,
            publish: start.publish,
            pending: None,
            retry_at: now,
            takes_changes: true,
            deaf_since: None,
            ending: None,
            drain_until: None,
            terminated: false,
            over: BTreeMap::new(),
            ordered: Some((ask_at, kill_at)),
            fences,
            config_file,
            fence_file,
        })
    }

    /// Where it serves this path.
    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// Everything that it may be working on.
    pub fn covered(&self) -> impl Iterator<Item = (&String, &Arc<Assigned>)> {
        let pending = self.pending.iter().flat_map(|it| &it.set);
        self.running.iter().chain(pending)
    }

    /// Reports to the guardian until when the tree may run: the earliest deadline of all that it works on, and
    /// for a lease that is definitely gone only as long as dropping the camera may take.
    pub fn order_deadline(&mut self, now: BootMillis, timing: Timing) {
        let limit_ms = self.command.takeaway_limit_seconds.millis();
        let mut over = std::mem::take(&mut self.over);
        over.retain(|name, _| self.covered().any(|(covered, _)| covered == name));
        let never = BootMillis::new(u64::MAX);
        let mut moments = (never, never);
        for (name, it) in self.covered() {
            let (mut ask, mut kill) = timing.stop_at(it.guard.stops_at());
            if it.guard.standing() == Standing::Over {
                // The worker may drop this camera alone until then; the others go on.
                let limit = over.entry(name.clone()).or_insert(now).plus(limit_ms);
                kill = kill.min(limit);
                ask = if ask <= now { kill } else { ask.min(kill) };
            }
            moments = (moments.0.min(ask), moments.1.min(kill));
        }
        self.over = over;
        if self.ordered != Some(moments) {
            self.ordered = Some(moments);
            if self.child.deadline(moments.0, moments.1).is_err() {
                tracing::info!(worker = self.id, "the guardian takes no orders; killed");
                self.child.kill_by_hand();
            }
        }
    }

    /// Writes the deadlines as they are now, if they changed.
    pub fn write_fences(&mut self, context: &Context) {
        let covered = self.covered().map(|(name, it)| (name.clone(), it.clone()));
        let fences = fences(context, &covered.collect(), self.publish);
        // The wall clock is for people: it may move a little without being written again.
        let moved = fences.cameras.len() != self.fences.cameras.len()
            || fences.cameras.iter().any(|(name, fence)| {
                self.fences.cameras.get(name).is_none_or(|old| {
                    (old.token, old.deadline_boot_ms, old.publish)
                        != (fence.token, fence.deadline_boot_ms, fence.publish)
                })
            });
        if moved {
            match files::write_json(&self.fence_file, &fences) {
                Ok(()) => self.fences = fences,
                Err(error) => tracing::warn!(worker = self.id, %error, "fence file not written"),
            }
        }
    }

    /// Writes the config file and gives the body of `POST /cameras`.
    pub fn write_config(
        &self,
        context: &Context,
        index: usize,
        generation: u64,
        set: &Shard,
        publish: bool,
    ) -> io::Result<Vec<u8>> {
        let shard_id = format!("{}-{index}", context.runner_id);
        let config = shard_config(context, &shard_id, generation, set, publish);
        files::write_json(&self.config_file, &config)?;
        Ok(serde_json::to_vec(&config)?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // They hold logins; gone already is fine.
        let _ = std::fs::remove_file(&self.config_file);
        let _ = std::fs::remove_file(&self.fence_file);
    }
}

fn fence(context: &Context, it: &Assigned, publish: bool) -> Fence {
    let stops_at = it.guard.stops_at();
    let left = stops_at.since(context.clock.boot());
    Fence {
        lease_id: it.lease_id.clone(),
        token: it.guard.token().get(),
        deadline_boot_ms: stops_at.get(),
        deadline_unix_ms: context.clock.unix().plus(left).get(),
        publish,
    }
}

/// Only what may be worked on right now.
fn fences(context: &Context, set: &Shard, publish: bool) -> FenceFile {
    let owned = set
        .iter()
        .filter(|(_, it)| it.guard.standing() != Standing::Over);
    FenceFile {
        cameras: owned
            .map(|(name, it)| (name.clone(), fence(context, it, publish)))
            .collect(),
    }
}

fn shard_config(
    context: &Context,
    shard_id: &str,
    generation: u64,
    set: &Shard,
    publish: bool,
) -> ShardConfig {
    ShardConfig {
        runner_id: context.runner_id.clone(),
        shard_id: shard_id.to_owned(),
        generation,
        cameras: set
            .values()
            .map(|it| ShardCamera {
                camera: it.camera.as_ref().clone(),
                config_version: it.config_version.clone(),
                zone_version: it.zone_version.clone(),
                fence: fence(context, it, publish),
            })
            .collect(),
    }
}

/// The command with its places filled in, or with the default arguments at its end.
fn command_line(
    settings: &WorkerSettings,
    config: &Path,
    runner_id: &str,
    shard_id: &str,
    port: u16,
) -> Vec<String> {
    let config = config.display().to_string();
    let pid = std::process::id().to_string();
    let port = port.to_string();
    let places = [
        ("{config}", config.as_str()),
        ("{runner_id}", runner_id),
        ("{shard_id}", shard_id),
        ("{manager_pid}", pid.as_str()),
        ("{port}", port.as_str()),
    ];
    let mut words = settings.command.0.clone();
    if words.is_empty() {
        let own = std::env::current_exe().map_or_else(
            |_| "leasehold".to_owned(),
            |path| path.to_string_lossy().into_owned(),
        );
        words = vec![own, "camera-worker".to_owned()];
    }
    let is_template = words
        .iter()
        .any(|word| places.iter().any(|(place, _)| word.contains(place)));
    if is_template {
        for word in &mut words {
            for (place, text) in places {
                *word = word.replace(place, text);
            }
        }
        return words;
    }
    let defaults = [
        ("--config", places[0].1),
        ("--runner-id", runner_id),
        ("--shard-id", shard_id),
        ("--manager-pid", places[3].1),
    ];
    words.extend(
        defaults
            .into_iter()
            .flat_map(|(name, text)| [name.to_owned(), text.to_owned()]),
    );
    words
}

/// A port that nobody has at this moment.
fn free_port() -> io::Result<u16> {
    let probe = TcpListener::bind(("127.0.0.1", 0))?;
    Ok(probe.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manager::settings::Words;

    fn line(command: &[&str]) -> Vec<String> {
        let settings = WorkerSettings {
            command: Words(command.iter().map(|word| (*word).to_owned()).collect()),
            ..WorkerSettings::default()
        };
        command_line(&settings, Path::new("/run/w.json"), "r", "r-0", 7)
    }

    #[test]
    fn a_command_gets_the_usual_arguments_or_places_its_own() {
        let pid = std::process::id().to_string();
        assert_eq!(
            line(&["python3", "w.py"]),
            [
                "python3",
                "w.py",
                "--config",
                "/run/w.json",
                "--runner-id",
                "r",
                "--shard-id",
                "r-0",
                "--manager-pid",
                pid.as_str()
            ]
        );
        assert_eq!(
            line(&["w", "-c={config}", "-p", "{port}"]),
            ["w", "-c=/run/w.json", "-p", "7"]
        );
        assert_eq!(line(&[])[1], "camera-worker");
    }
}
