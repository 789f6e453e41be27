//! What the loops share: takes, places and gives up cameras, and keeps the slots at it.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use arc_swap::ArcSwap;
use lease::{BootMillis, Lease, Token};
use leasehold_api::{RegisterRequest, RunnerHeartbeatAnswer, Seconds};
use leasehold_client::{Guard, Keeper, Loss, RunnerClient, keeper::Told};
use tokio::sync::{Notify, mpsc};
use tokio_util::task::TaskTracker;

use super::{
    Context, Settings, handover, heartbeat,
    load::HostLoad,
    metrics::count,
    peers::PeerManagers,
    plan::{self, Placed},
    process::{Assigned, Claim, Shard},
    settings::WorkerSettings,
    slot::{self, Desired, Stop},
    state::{Contact, Entry, Held, State},
    timing::Timing,
};

/// How often figures and the state of the control plane are looked at.
const HOUSEKEEPING_MS: u64 = 500;

pub(super) struct Core {
    pub settings: ArcSwap<Settings>,
    pub context: Arc<Context>,
    pub plane: Arc<RunnerClient>,
    pub keeper: Keeper,
    pub peers: Arc<PeerManagers>,
    pub contact: Arc<Contact>,
    pub address: SocketAddr,
    // Held for a moment, never over a call.
    state: Mutex<State>,
    slots: Mutex<Vec<slot::Handle>>,
    /// Slots that are no longer in the plan, until their workers ended.
    retired: Mutex<Vec<slot::Handle>>,
    slot_tasks: TaskTracker,
    pub beat: Notify,
    pub acquire: Notify,
    pub sync: Notify,
    /// The newest change that was heard of.
    pub revision: AtomicU64,
    /// How busy this host is, in thousandths; more than that while it is not known.
    pub host_load: AtomicU32,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Core {
    pub fn new(
        settings: Settings,
        context: Arc<Context>,
        plane: Arc<RunnerClient>,
        keeper: Keeper,
        peers: Arc<PeerManagers>,
        contact: Arc<Contact>,
        address: SocketAddr,
    ) -> Self {
        Self {
            settings: ArcSwap::from_pointee(settings),
            context,
            plane,
            keeper,
            peers,
            contact,
            address,
            state: Mutex::default(),
            slots: Mutex::default(),
            retired: Mutex::default(),
            slot_tasks: TaskTracker::new(),
            beat: Notify::new(),
            acquire: Notify::new(),
            sync: Notify::new(),
            revision: AtomicU64::new(0),
            host_load: AtomicU32::new(u32::MAX),
        }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub fn now(&self) -> BootMillis {
        self.context.clock.boot()
    }

    pub async fn sleep_ms(&self, millis: u64) {
        let clock = &self.context.clock;
        clock.sleep_until(clock.boot().plus(millis)).await;
    }

    pub fn is_registered(&self) -> bool {
        self.state().registered
    }

    /// The registration of this runner.
    pub fn registration(&self) -> RegisterRequest {
        let settings = self.settings.load();
        let presence_ms = settings.lease_ttl_seconds.millis().max(1_000);
        RegisterRequest {
            runner_id: self.context.runner_id.clone(),
            tenant_id: settings.tenant_id.clone(),
            site_id: settings.site_id.clone(),
            deployment_group: settings.deployment_group.clone(),
            deployment_version: settings.deployment_version.clone(),
            host: settings.advertise_host.clone().unwrap_or_else(host_name),
            port: self.address.port(),
            capacity: u32::try_from(settings.capacity()).ok(),
            metrics_port: Some(self.context.metrics_port).filter(|&port| port != 0),
            capabilities: settings.capabilities.clone(),
            incarnation: Some(self.plane.holder().incarnation.as_str().to_owned()),
            ttl_seconds: Some(Seconds::from_millis(presence_ms)),
        }
    }

    /// The leases that are held, as the control plane knows them.
    pub fn leases(&self) -> Vec<Lease> {
        let state = self.state();
        let leases = state.held.values().map(|it| it.assigned.guard.lease());
        leases.collect()
    }

    fn desired(&self, cameras: Shard, command: Arc<WorkerSettings>, warm: bool) -> Desired {
        let settings = self.settings.load();
        // Checked when the settings came.
        let ttl = settings
            .ttl()
            .unwrap_or_else(|_| lease::Ttl::from_secs(60).expect("a minute is a ttl"));
        Desired {
            cameras,
            command,
            timing: Timing::of(ttl),
            warm,
            stop: None,
        }
    }

    /// Starts the slots that are missing, and retires those that are too many.
    pub fn set_slots(&self) {
        let settings = self.settings.load();
        let command = Arc::new(settings.worker.clone());
        let mut slots = lock(&self.slots);
        while slots.len() < settings.max_workers {
            let desired = self.desired(Shard::new(), command.clone(), false);
            let index = slots.len();
            slots.push(slot::spawn(
                index,
                self.context.clone(),
                desired,
                &self.slot_tasks,
            ));
        }
        let extra = slots.split_off(settings.max_workers);
        drop(slots);
        for handle in &extra {
            handle.desired.send_modify(|it| it.stop = Some(Stop::Drain));
        }
        lock(&self.retired).extend(extra);
        self.arrange();
    }

    /// Every slot's view.
    pub fn views(&self) -> Vec<slot::View> {
        let slots = lock(&self.slots);
        let retired = lock(&self.retired);
        slots
            .iter()
            .chain(retired.iter())
            .map(slot::Handle::view)
            .collect()
    }

    /// A worker's heartbeat; false when no such worker runs.
    pub fn worker_heartbeat(
        &self,
        worker: &str,
        body: &leasehold_api::worker::WorkerHeartbeat,
    ) -> bool {
        let now = self.now();
        let slots = lock(&self.slots);
        slots
            .iter()
            .any(|slot| slot.heartbeat(worker, now, body.clone()))
    }

    /// Places every camera and lets the slots know.
    pub fn arrange(&self) {
        let settings = self.settings.load();
        let command = Arc::new(settings.worker.clone());
        let slots = lock(&self.slots);
        let mut shards = vec![Shard::new(); slots.len()];
        let mut warm = vec![false; slots.len()];
        let mut state = self.state();
        let placed = state.placed(&settings.site_id);
        let placed = plan::assign(&placed, slots.len(), settings.max_cameras_per_worker);
        for (name, it) in &mut state.held {
            it.slot = placed.get(name).copied();
            if let Some(slot) = it.slot {
                shards[slot].insert(name.clone(), it.assigned.clone());
            }
        }
        for (name, it) in &mut state.expected {
            it.slot = placed.get(name).copied();
            if let Some(slot) = it.slot {
                warm[slot] = true;
            }
        }
        drop(state);
        for ((handle, shard), warm) in slots.iter().zip(shards).zip(warm) {
            let desired = self.desired(shard, command.clone(), warm);
            handle.desired.send_if_modified(|it| {
                let changed = !super::process::same(&it.cameras, &desired.cameras)
                    || it.command != desired.command
                    || it.timing != desired.timing
                    || it.warm != desired.warm;
                if changed && it.stop.is_none() {
                    let command = if it.command == desired.command {
                        it.command.clone()
                    } else {
                        desired.command.clone()
                    };
                    *it = Desired { command, ..desired };
                }
                changed
            });
        }
    }

    /// The shard that a camera would go to.
    pub fn shard_for(&self, camera: &str, site: &str) -> String {
        let settings = self.settings.load();
        let state = self.state();
        if let Some(slot) = state.expected.get(camera).and_then(|it| it.slot) {
            return format!("{}-{slot}", self.context.runner_id);
        }
        let mut placed = state.placed(&settings.site_id);
        placed.push(Placed {
            camera,
            site,
            slot: None,
        });
        let plan = plan::assign(
            &placed,
            settings.max_workers,
            settings.max_cameras_per_worker,
        );
        let slot = plan.get(camera).copied().unwrap_or(0);
        format!("{}-{slot}", self.context.runner_id)
    }

    /// A camera was acquired.
    pub fn adopt(self: &Arc<Self>, entry: &Entry, guard: Guard) {
        let name = entry.camera.camera_uuid.clone();
        let token = guard.token();
        let lost = guard.lost();
        let assigned = Arc::new(Assigned {
            camera: entry.camera.clone(),
            config_version: entry.config_version.clone(),
            zone_version: entry.own_zone_version.clone(),
            lease_id: self.plane.lease_id(&guard.lease()),
            guard: Arc::new(guard),
            claim: Claim::new(),
        });
        tracing::info!(camera = name, %token, "camera acquired");
        let mut state = self.state();
        if state.stopping {
            // Dropped, which gives it back.
            return;
        }
        let held = Held {
            assigned,
            slot: state.expected.remove(&name).and_then(|it| it.slot),
            since: self.context.clock.unix(),
        };
        state.wanted.remove(&name);
        state.held.insert(name.clone(), held);
        drop(state);
        self.context.metrics.owner_changes.inc();
        self.arrange();
        let core = Arc::downgrade(self);
        tokio::spawn(async move {
            let why = lost.await;
            if let Some(core) = core.upgrade() {
                core.lost(&name, token, &why);
            }
        });
    }

    /// A lease is over.
    fn lost(&self, camera: &str, token: Token, why: &Loss) {
        let mut state = self.state();
        let is_held = state
            .held
            .get(camera)
            .is_some_and(|it| it.assigned.guard.token() == token);
        if !is_held {
            return;
        }
        if let Some(held) = state.held.remove(camera) {
            // Where the control plane was away, it may keep the lease for this manager all the same.
            let lapsed = (held.assigned.lease_id.clone(), self.now());
            state.strays.insert(camera.to_owned(), lapsed);
        }
        drop(state);
        tracing::warn!(camera, %token, reason = %why, "camera lost");
        self.context.metrics.owner_changes.inc();
        self.arrange();
        self.beat.notify_one();
    }

    /// Takes a camera away from its worker and keeps its lease.
    pub fn take_out(&self, camera: &str, token: Token) -> Option<Held> {
        let mut state = self.state();
        let is_held = state
            .held
            .get(camera)
            .is_some_and(|it| it.assigned.guard.token() == token);
        let held = is_held.then(|| state.held.remove(camera)).flatten();
        drop(state);
        self.arrange();
        held
    }

    /// Undoes [`Core::take_out`]; when this manager stops, the lease is given back instead.
    pub fn put_back(&self, camera: &str, held: Held) {
        let mut state = self.state();
        if !state.stopping {
            state.held.insert(camera.to_owned(), held);
        }
        drop(state);
        self.arrange();
    }

    /// Whether the worker that a camera is expected at runs.
    pub fn is_slot_up(&self, camera: &str) -> bool {
        let slot = self.state().expected.get(camera).and_then(|it| it.slot);
        let slots = lock(&self.slots);
        slot.and_then(|slot| slots.get(slot))
            .is_some_and(|handle| handle.view().state == "healthy")
    }

    /// Lets cameras go. Their leases are given back as soon as their workers have dropped them.
    pub fn give_up(&self, cameras: &[String], reason: &str) {
        let mut state = self.state();
        let mut gone = 0;
        for camera in cameras {
            if state.held.remove(camera).is_some() {
                gone += 1;
                tracing::info!(camera, reason, "camera given up");
                self.context.metrics.owner_changes.inc();
            }
        }
        drop(state);
        if gone > 0 {
            self.arrange();
        }
    }

    /// A slot's worker crashed again and again.
    fn slot_gave_up(&self, slot: usize) {
        let settings = self.settings.load();
        let cooldown = settings.worker.crash_cooldown_seconds.millis();
        let until = self.now().plus(cooldown);
        let cameras: Vec<String> = {
            let mut state = self.state();
            let cameras: Vec<String> = state
                .held
                .iter()
                .filter(|(_, it)| it.slot == Some(slot))
                .map(|(name, _)| name.clone())
                .collect();
            for camera in &cameras {
                state.avoid.insert(camera.clone(), until);
            }
            cameras
        };
        self.give_up(&cameras, "crash_loop");
    }

    /// What the control plane answered to a heartbeat.
    pub fn heard(self: &Arc<Self>, answer: &RunnerHeartbeatAnswer) {
        let orders = |word: &str| answer.orders.iter().any(|order| order == word);
        let (cordoned, draining) = (orders("cordon"), orders("drain"));
        let hard = draining && orders("hard");
        let settings = self.settings.load();
        let mut state = self.state();
        if (state.cordoned, state.draining) != (cordoned, draining) {
            tracing::info!(cordoned, draining, "orders changed");
            (state.cordoned, state.draining) = (cordoned, draining);
        }
        state.validated = true;
        for lost in &answer.lost {
            let held = lost.camera_uuid.as_ref().and_then(|it| state.held.get(it));
            if let Some(held) = held {
                let lease = held.assigned.guard.lease();
                self.plane.lost(Told::Lost {
                    key: lease.key,
                    token: lease.token,
                    loss: (&lost.loss).into(),
                });
            }
        }
        state.wanted = answer
            .take
            .iter()
            .filter(|it| !state.held.contains_key(&it.camera_uuid))
            .map(|it| (it.camera_uuid.clone(), it.clone()))
            .collect();
        state.adopt_strays(answer, self.now());
        let known = state.catalog_version.as_ref();
        let outdated = answer.config.as_ref().is_some_and(|it| {
            known.is_none_or(|known| {
                (&known.config_version, &known.zone_version)
                    != (&it.config_version, &it.zone_version)
            })
        });
        let wants = !state.wanted.is_empty();
        drop(state);
        let (drained, others): (Vec<_>, Vec<_>) = answer
            .give_up
            .iter()
            .filter(|it| hard || !handover::begin(self, it, settings.drain_batch))
            .partition(|it| it.reason == "draining");
        for it in others {
            self.give_up(std::slice::from_ref(&it.camera_uuid), &it.reason);
        }
        let batch: Vec<String> = drained
            .iter()
            .take(if hard {
                usize::MAX
            } else {
                settings.drain_batch
            })
            .map(|it| it.camera_uuid.clone())
            .collect();
        self.give_up(&batch, "draining");
        for offer in &answer.offers {
            handover::offered(self, &offer.camera_uuid);
        }
        if outdated {
            self.sync.notify_one();
        }
        if wants {
            self.acquire.notify_one();
        }
    }

    /// Nothing new from now on.
    pub fn begin_stop(&self) {
        let mut state = self.state();
        state.stopping = true;
        state.wanted.clear();
    }

    /// Lets every slot know that it ends.
    pub fn stop_slots(&self, stop: Stop) {
        let slots = lock(&self.slots);
        let retired = lock(&self.retired);
        for handle in slots.iter().chain(retired.iter()) {
            handle.desired.send_modify(|it| it.stop = Some(stop));
        }
    }

    /// Resolves when no worker is left.
    pub async fn slots_ended(&self) {
        self.slot_tasks.close();
        self.slot_tasks.wait().await;
    }

    /// Drops every guard.
    pub fn forget_all(&self) {
        let held = std::mem::take(&mut self.state().held);
        drop(held);
        lock(&self.slots).clear();
        lock(&self.retired).clear();
    }

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

/// Figures, crash loops, and the report of a control plane that goes away or comes back.
pub(super) async fn housekeep(core: Arc<Core>, mut gave_up: mpsc::Receiver<usize>) {
    let mut degraded = false;
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
                    "control plane out of reach; cameras go on under their outage policy"
                );
                let mut state = core.state();
                state.validated = false;
                state.wanted.clear();
            } else {
                tracing::info!(
                    status = "ok",
                    "control plane answers; everything held is validated first"
                );
                core.beat.notify_one();
            }
        }
    }
}

fn host_name() -> String {
    let host = nix::unistd::gethostname()
        .ok()
        .and_then(|host| host.into_string().ok());
    host.filter(|host| !host.is_empty())
        .unwrap_or_else(|| "localhost".into())
}
