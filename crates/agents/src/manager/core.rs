//! What the loops share: the state of a manager, and what it makes of the control plane's answers.

mod holdings;
mod housekeeping;
mod slots;

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, AtomicU64},
    },
};

use arc_swap::ArcSwap;
use lease::BootMillis;
use leasehold_api::{RegisterRequest, RunnerHeartbeatAnswer, Seconds};
use leasehold_client::{Keeper, RunnerClient, keeper::LossNotice};
use tokio::sync::Notify;
use tokio_util::task::TaskTracker;

use super::{
    Context, Settings, handover,
    peers::PeerManagers,
    slot,
    state::{Contact, State},
};

pub(super) use housekeeping::housekeep;

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
    /// The control plane is talked to at another address, or with another credential.
    pub replaced: Notify,
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
            replaced: Notify::new(),
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

    /// What the control plane answered to a heartbeat, which was sent after so many outages.
    pub fn heard(self: &Arc<Self>, answer: &RunnerHeartbeatAnswer, outages: u64) {
        let orders = |word: &str| answer.orders.iter().any(|order| order == word);
        let (cordoned, draining) = (orders("cordon"), orders("drain"));
        let hard = draining && orders("hard");
        let settings = self.settings.load();
        let mut state = self.state();
        if (state.cordoned, state.draining) != (cordoned, draining) {
            tracing::info!(cordoned, draining, "orders changed");
            (state.cordoned, state.draining) = (cordoned, draining);
        }
        state.validated = Some(outages);
        for lost in &answer.lost {
            let held = lost.camera_uuid.as_ref().and_then(|it| state.held.get(it));
            if let Some(held) = held {
                let lease = held.assigned.guard.lease();
                self.plane.lost(LossNotice::Lost {
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
}

fn host_name() -> String {
    let host = nix::unistd::gethostname()
        .ok()
        .and_then(|host| host.into_string().ok());
    host.filter(|host| !host.is_empty())
        .unwrap_or_else(|| "localhost".into())
}
