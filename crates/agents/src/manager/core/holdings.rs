//! What a manager holds: cameras come, are lost, are handed over and are given up.

use std::sync::Arc;

use lease::{Lease, Token};
use leasehold_client::{Guard, Loss};

use super::{
    super::{
        process::{Assigned, Claim},
        state::{Entry, Held},
    },
    Core, lock,
};

impl Core {
    /// The leases that are held, as the control plane knows them.
    pub fn leases(&self) -> Vec<Lease> {
        let state = self.state();
        let leases = state.held.values().map(|it| it.assigned.guard.lease());
        leases.collect()
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
    pub(super) fn slot_gave_up(&self, slot: usize) {
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

    /// Drops every guard.
    pub fn forget_all(&self) {
        let held = std::mem::take(&mut self.state().held);
        drop(held);
        lock(&self.slots).clear();
        lock(&self.retired).clear();
    }
}
