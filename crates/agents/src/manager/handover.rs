//! Moves cameras between managers without a moment of two owners (L18). The manager that has a camera goes
//! on until a worker of the next one runs; then it takes the camera away from its own worker, and commits
//! only after that. Where the next one does not answer, the camera is released and found again.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use lease::{
    Authority as _, BootMillis, Error, Event, EventCause, EventKind, HandoffStage, HandoffState,
    HandoffStep, Holder, Key, LeaseRef, registry::CAMERA,
};
use leasehold_api::GiveUp;
use tokio::sync::Notify;

use super::{
    acquisition,
    core::Core,
    process::{Assigned, Claim},
    state::Held,
    sync,
};

/// How long the next manager has until a worker of it runs. The camera is processed meanwhile.
const PREPARE_MS: u64 = 10_000;
/// How long its worker has to drop the camera after that.
const DRAIN_MS: u64 = 8_000;
/// How long the next manager has to take what was moved to it.
const CONFIRM_MS: u64 = 3_000;
/// How often a step is repeated when no event says how it goes.
const LOOK_AGAIN_MS: u64 = 250;
/// How often a starting worker is looked at.
const WORKER_LOOK_MS: u64 = 20;
/// How many cameras are handed over at the same time, beside a drain, which has a setting.
const CONCURRENT: usize = 8;

/// A camera that this manager expects from another.
pub(super) struct Expected {
    pub slot: Option<usize>,
    wake: Arc<Notify>,
}

/// A camera that this manager hands over to another.
pub(super) struct Leaving {
    to: Holder,
    wake: Arc<Notify>,
    /// The control plane wants it elsewhere by now.
    superseded: Arc<AtomicBool>,
}

/// Begins to hand over what the control plane wants elsewhere. True when this camera is, or will be,
/// handed over; otherwise it has to be released.
pub(super) fn begin(core: &Arc<Core>, it: &GiveUp, batch: usize) -> bool {
    let moves = ["draining", "balance", "deployment", "not_eligible"].contains(&it.reason.as_str());
    let successor = it.to.as_deref().zip(it.to_incarnation.as_deref());
    let successor = successor.and_then(|(to, incarnation)| Holder::new(to, incarnation).ok());
    if let Some(leaving) = core.state().leaving.get(&it.camera_uuid) {
        if successor.as_ref() != Some(&leaving.to) {
            leaving.superseded.store(true, Ordering::Release);
            leaving.wake.notify_one();
        }
        return true;
    }
    let Some(successor) = successor.filter(|_| moves && !core.plane.is_plain()) else {
        return false;
    };
    let limit = if it.reason == "draining" {
        batch
    } else {
        CONCURRENT
    };
    let camera = it.camera_uuid.clone();
    let mut state = core.state();
    if state.leaving.len() >= limit {
        // The next heartbeat, after one of them is through, brings it again.
        return true;
    }
    let Some(lease) = state
        .held
        .get(&camera)
        .map(|held| LeaseRef::from(&held.assigned.guard.lease()))
    else {
        return true;
    };
    let (wake, superseded) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
    let leaving = Leaving {
        to: successor.clone(),
        wake: wake.clone(),
        superseded: superseded.clone(),
    };
    state.leaving.insert(camera.clone(), leaving);
    drop(state);
    let (core, reason) = (core.clone(), it.reason.clone());
    tokio::spawn(async move {
        let began = core.now();
        let to = successor.name.clone();
        let given = give(&core, &camera, &lease, successor, (&wake, &superseded)).await;
        core.state().leaving.remove(&camera);
        let took_ms = core.now().since(began);
        match given {
            Given::Moved => {
                tracing::info!(camera, %to, reason, took_ms, "camera handed over");
                core.context.metrics.owner_changes.inc();
            }
            Given::NoAnswer => {
                tracing::info!(camera, %to, reason, took_ms, "no answer to an offer; camera released");
                core.give_up(std::slice::from_ref(&camera), &reason);
            }
            // What this manager must not have is free for all where it cannot be handed over: the one that it
            // should go to may be full of what should come here.
            Given::Refused if reason == "not_eligible" => {
                tracing::info!(camera, %to, reason, took_ms, "offer refused; camera released");
                core.give_up(std::slice::from_ref(&camera), &reason);
            }
            Given::Refused | Given::Kept => {
                tracing::info!(camera, %to, reason, took_ms, "camera not handed over");
            }
        }
        core.beat.notify_one();
    });
    true
}

/// How an offer ended.
enum Given {
    /// This manager has it no longer.
    Moved,
    /// The next manager did not answer.
    NoAnswer,
    /// The next one may not have it, or has no room.
    Refused,
    /// It came to nothing.
    Kept,
}

async fn give(
    core: &Arc<Core>,
    camera: &str,
    lease: &LeaseRef,
    successor: Holder,
    (wake, superseded): (&Notify, &AtomicBool),
) -> Given {
    let offer = HandoffStep::Offer {
        lease: lease.clone(),
        successor,
        prepare_ms: PREPARE_MS,
        drain_ms: DRAIN_MS,
        confirm_ms: CONFIRM_MS,
    };
    let deadline = core.now().plus(PREPARE_MS);
    loop {
        match core.plane.handoff(offer.clone()).await {
            Ok(HandoffState::Open(open)) if open.stage == HandoffStage::Prepared => break,
            Ok(HandoffState::Open(_)) => {}
            Ok(HandoffState::Lost(_)) => return Given::Kept,
            Ok(HandoffState::Moved(_) | HandoffState::Void) => return Given::NoAnswer,
            Err(error) if error.is_retryable() => {}
            Err(error @ (Error::Unsupported(_) | Error::Denied(_))) => {
                tracing::debug!(camera, %error, "the control plane hands nothing over");
                return Given::NoAnswer;
            }
            // The next one may not have it, or not any more: the next heartbeat names another.
            Err(error) => {
                tracing::debug!(camera, %error, "offer refused");
                cancel(core, &lease.key).await;
                core.sleep_ms(LOOK_AGAIN_MS).await;
                return Given::Refused;
            }
        }
        let over = core.now() >= deadline;
        if over || superseded.load(Ordering::Acquire) {
            cancel(core, &lease.key).await;
            return if over { Given::NoAnswer } else { Given::Kept };
        }
        woken(core, wake, deadline).await;
    }
    let Some(held) = core.take_out(camera, lease.token) else {
        return Given::Kept;
    };
    // From here on no worker of this manager can begin with it.
    let dropped = core.now().plus(DRAIN_MS / 2);
    tokio::select! {
        () = held.assigned.claim.close() => {}
        () = core.context.clock.sleep_until(dropped) => {
            cancel(core, &lease.key).await;
            core.put_back(camera, held);
            return Given::Kept;
        }
    }
    let commit = HandoffStep::Commit {
        lease: lease.clone(),
        // The control plane knows how many the next one may have.
        limit: None,
    };
    match core.plane.handoff(commit).await {
        Ok(HandoffState::Moved(_) | HandoffState::Lost(_)) => Given::Moved,
        Ok(HandoffState::Void | HandoffState::Open(_)) => {
            // Out of time, or the next one got full meanwhile and still waits.
            cancel(core, &lease.key).await;
            let assigned = Assigned {
                camera: held.assigned.camera.clone(),
                config_version: held.assigned.config_version.clone(),
                zone_version: held.assigned.zone_version.clone(),
                lease_id: held.assigned.lease_id.clone(),
                guard: held.assigned.guard.clone(),
                claim: Claim::new(),
            };
            let again = Held {
                assigned: Arc::new(assigned),
                ..held
            };
            core.put_back(camera, again);
            Given::Kept
        }
        // It may have happened. The release, which names this lease's token, is safe in any case.
        Err(error) => {
            tracing::info!(camera, %error, "no answer to the commit of a hand-over");
            Given::Moved
        }
    }
}

async fn cancel(core: &Core, key: &Key) {
    let step = HandoffStep::Cancel {
        key: key.clone(),
        by: core.plane.holder().clone(),
    };
    // Without an answer the offer simply runs out of time.
    let _ = core.plane.handoff(step).await;
}

async fn woken(core: &Core, wake: &Notify, deadline: BootMillis) {
    let look = core.now().plus(LOOK_AGAIN_MS).min(deadline);
    tokio::select! {
        () = wake.notified() => {}
        () = core.context.clock.sleep_until(look) => {}
    }
}

/// Another manager offers a camera: a worker for it is started, and it is taken once it was moved.
pub(super) fn offered(core: &Arc<Core>, camera: &str) {
    if !acquisition::takes(core) {
        return;
    }
    let capacity = core.settings.load().capacity();
    let (now, wake) = (core.now(), Arc::new(Notify::new()));
    let mut state = core.state();
    let has_room = state.held.len() + state.expected.len() < capacity;
    let avoided = state.avoid.get(camera).is_some_and(|until| *until > now);
    if state.held.contains_key(camera)
        || state.expected.contains_key(camera)
        || !has_room
        || avoided
    {
        return;
    }
    let expected = Expected {
        slot: None,
        wake: wake.clone(),
    };
    state.expected.insert(camera.to_owned(), expected);
    drop(state);
    core.arrange();
    let (core, camera) = (core.clone(), camera.to_owned());
    tokio::spawn(async move {
        receive(&core, &camera, &wake).await;
        if core.state().expected.remove(&camera).is_some() {
            core.arrange();
            core.beat.notify_one();
        }
    });
}

async fn receive(core: &Arc<Core>, camera: &str, wake: &Notify) {
    let Ok(key) = Key::new(CAMERA, camera) else {
        return;
    };
    if acquisition::entry(core, camera).is_none() && !sync::fetch(core).await {
        return cancel(core, &key).await;
    }
    let deadline = core.now().plus(PREPARE_MS);
    while !core.is_slot_up(camera) {
        if core.now() >= deadline || core.state().stopping {
            return cancel(core, &key).await;
        }
        core.sleep_ms(WORKER_LOOK_MS).await;
    }
    tracing::info!(camera, "a worker runs for an offered camera");
    let prepare = HandoffStep::Prepare {
        key,
        successor: core.plane.holder().clone(),
    };
    let deadline = core.now().plus(DRAIN_MS + CONFIRM_MS);
    while core.now() < deadline && !core.state().stopping {
        match core.plane.handoff(prepare.clone()).await {
            Ok(HandoffState::Open(_)) | Err(_) => {}
            // Moved, and perhaps confirmed by a heartbeat already; or the offer is void, because the other
            // one called it off, which leaves it the holder, or is gone, which leaves the camera free.
            Ok(HandoffState::Moved(_) | HandoffState::Void | HandoffState::Lost(_)) => {
                if let Some(entry) = acquisition::entry(core, camera) {
                    acquisition::acquire(core, &entry).await;
                }
                return;
            }
        }
        woken(core, wake, deadline).await;
    }
}

/// What the control plane's stream says about hand-overs.
pub(super) fn heard(core: &Arc<Core>, event: &Event) {
    if event.key.kind() != CAMERA {
        return;
    }
    let camera = event.key.id();
    match event.kind {
        EventKind::HandoffOffered
            if event.cause.as_ref().and_then(EventCause::holder) == Some(core.plane.holder()) =>
        {
            offered(core, camera);
        }
        EventKind::HandoffPrepared | EventKind::HandoffCancelled | EventKind::LeaseAcquired => {
            let state = core.state();
            let expected = state.expected.get(camera).map(|it| &it.wake);
            let leaving = state.leaving.get(camera).map(|it| &it.wake);
            let wakes = leaving.into_iter().chain(expected);
            wakes.for_each(|wake| wake.notify_one());
        }
        _ => {}
    }
}
