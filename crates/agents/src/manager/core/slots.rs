//! The slots of a manager: which there are, and which camera is in which.

use std::sync::Arc;

use super::{
    super::{
        plan::{self, Placed},
        process::{Shard, same},
        settings::WorkerSettings,
        slot::{self, Desired, Stop},
        timing::Timing,
    },
    Core, lock,
};

impl Core {
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
                let changed = !same(&it.cameras, &desired.cameras)
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

    /// Whether the worker that a camera is expected at runs.
    pub fn is_slot_up(&self, camera: &str) -> bool {
        let slot = self.state().expected.get(camera).and_then(|it| it.slot);
        let slots = lock(&self.slots);
        slot.and_then(|slot| slots.get(slot))
            .is_some_and(|handle| handle.view().state == "healthy")
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
}
