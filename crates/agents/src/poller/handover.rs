//! Handing a target to the instance that should have it, without a moment of two owners (L18).

use std::sync::Arc;

use lease::{HandoffStage, HandoffState, HandoffStep, Holder, Key, polling::POLL};
use leasehold_clock::Backoff;

use super::{coordinator::Shared, discovery::limited};

/// How long one call may take.
const CALL_MS: u64 = 1_000;
/// How soon a step is repeated when no event shows how it goes: ever more rarely, so that a store that has much
/// to do does not get more because of it.
const LOOK_AGAIN_MS: (u64, u64) = (200, 2_000);

/// How an offer ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Given {
    /// The successor has it.
    Moved,
    /// The successor did not answer.
    NoAnswer,
    /// It came to nothing for another reason.
    Kept,
}

/// The holder's side: offers, waits until the successor is prepared, drains, commits.
pub(super) async fn give(shared: &Shared, target: &str, successor: Holder) -> Given {
    if !shared.table.begin_move(target) {
        return Given::Kept;
    }
    let given = try_to_give(shared, target, successor).await;
    if given != Given::Moved {
        shared.table.end_move(target);
    }
    given
}

async fn try_to_give(shared: &Shared, target: &str, successor: Holder) -> Given {
    let Some(lease) = shared.table.reference(target) else {
        return Given::Kept;
    };
    let options = &shared.options;
    let offer = HandoffStep::Offer {
        lease: lease.clone(),
        successor: successor.clone(),
        prepare_ms: options.answer_ms,
        drain_ms: options.drain_ms + options.answer_ms,
        confirm_ms: options.answer_ms,
    };
    let prepared = until_prepared(shared, target, offer).await;
    shared.prepared.send_modify(|targets| {
        targets.remove(target);
    });
    match prepared {
        Some(true) => {}
        Some(false) => return Given::Kept,
        None => {
            cancel(shared, lease.key, shared.holder.clone()).await;
            return Given::NoAnswer;
        }
    }
    // The commit comes only after the last poll ended.
    if !drained(shared, target).await {
        cancel(shared, lease.key, shared.holder.clone()).await;
        return Given::Kept;
    }
    let commit = HandoffStep::Commit {
        lease: lease.clone(),
        limit: None,
    };
    match limited(&*shared.clock, CALL_MS, shared.authority.handoff(commit)).await {
        Ok(HandoffState::Moved(moved)) => {
            shared.moved_away(target, lease.token, &successor, Some(&moved));
            Given::Moved
        }
        Ok(HandoffState::Lost(_)) => {
            shared.moved_away(target, lease.token, &successor, None);
            Given::Moved
        }
        Ok(HandoffState::Void | HandoffState::Open(_)) => Given::Kept,
        // It may have happened. Giving up what may still be ours is always safe: the release names
        // this lease's token and touches no other.
        Err(error) => {
            tracing::info!(instance = %shared.id, target, %error, "no answer to the commit of a hand-over");
            // The successor may have it and work under it, also if the store forgets that.
            let until = shared.clock.boot().plus(options.lease_ttl_ms);
            shared.mirror().leave_alone(target, until);
            let _ = shared.give_back(target, "a hand-over had no answer").await;
            Given::Moved
        }
    }
}

/// No poll of the target starts any more; true once the last one has ended.
async fn drained(shared: &Shared, target: &str) -> bool {
    shared.table.drain(target);
    let idle = async {
        shared.table.idle(target).await;
        Ok(())
    };
    limited(&*shared.clock, shared.options.drain_ms, idle)
        .await
        .is_ok()
}

/// Releases a target to a foreign program that should have it and knows no hand-over.
pub(super) async fn leave(shared: &Shared, target: &str, node: &str) -> Given {
    if !shared.table.begin_move(target) {
        return Given::Kept;
    }
    if !drained(shared, target).await {
        shared.table.end_move(target);
        return Given::Kept;
    }
    let reason = format!("left to {node}");
    match shared.give_back(target, &reason).await {
        Ok(()) => Given::Moved,
        Err(_) => Given::Kept,
    }
}

/// Repeats the offer until the successor is prepared. `Some(false)` when there is nothing to hand
/// over, `None` when the successor did not answer in time.
async fn until_prepared(shared: &Shared, target: &str, offer: HandoffStep) -> Option<bool> {
    let deadline = shared.clock.boot().plus(shared.options.answer_ms);
    let mut prepared = shared.prepared.subscribe();
    let mut again = Backoff::new(LOOK_AGAIN_MS.0, LOOK_AGAIN_MS.1);
    loop {
        let call = shared.authority.handoff(offer.clone());
        match limited(&*shared.clock, CALL_MS, call).await {
            Ok(HandoffState::Open(open)) if open.stage == HandoffStage::Prepared => {
                return Some(true);
            }
            Ok(HandoffState::Open(_))
            | Err(lease::Error::Unknown(_) | lease::Error::Unavailable(_)) => {}
            Ok(HandoffState::Moved(_) | HandoffState::Void | HandoffState::Lost(_)) | Err(_) => {
                return Some(false);
            }
        }
        if shared.clock.boot() >= deadline {
            return None;
        }
        tokio::select! {
            // The sender lives in `shared`.
            heard = prepared.wait_for(|targets| targets.contains(target)) => {
                if heard.is_ok() {
                    return Some(true);
                }
            }
            () = again.pause(&*shared.clock) => {}
        }
    }
}

async fn cancel(shared: &Shared, key: Key, by: Holder) {
    let step = HandoffStep::Cancel { key, by };
    // Without an answer the offer simply runs out of time.
    let _ = limited(&*shared.clock, CALL_MS, shared.authority.handoff(step)).await;
}

/// The successor's side: says that it is prepared, and takes the target once it is committed.
pub(super) async fn take(shared: &Arc<Shared>, target: &str) {
    let Ok(key) = Key::new(POLL, target) else {
        return;
    };
    let welcome = {
        let mirror = shared.mirror();
        mirror
            .target(target)
            .is_some_and(|target| !target.is_paused)
    };
    if !welcome || shared.table.is_stopping() {
        cancel(shared, key, shared.holder.clone()).await;
        return;
    }
    let options = &shared.options;
    let limit = 2 * options.answer_ms + options.drain_ms;
    let deadline = shared.clock.boot().plus(limit);
    let mut again = Backoff::new(LOOK_AGAIN_MS.0, LOOK_AGAIN_MS.1);
    while shared.clock.boot() < deadline && !shared.table.is_stopping() {
        let step = HandoffStep::Prepare {
            key: key.clone(),
            successor: shared.holder.clone(),
        };
        match limited(&*shared.clock, CALL_MS, shared.authority.handoff(step)).await {
            // Asking as the holder that the key was moved to confirms the hand-over.
            Ok(HandoffState::Moved(_)) => {
                let _ = shared.ask(target, false).await;
                return;
            }
            Ok(HandoffState::Void | HandoffState::Lost(_)) => return,
            Ok(HandoffState::Open(_)) | Err(_) => {}
        }
        // The reconciler asks as soon as an event reports the commit.
        if shared.table.is_owned(target) {
            return;
        }
        again.pause(&*shared.clock).await;
    }
}
