//! Handing a target to the instance that should have it, without a moment of two owners (L18).

use std::{sync::Arc, time::Duration};

use lease::{HandoffStage, HandoffState, HandoffStep, Holder, Key, polling::POLL};

use super::{coordinator::Shared, discovery::limited};

/// How long one call may take.
const CALL_MS: u64 = 1_000;
/// How often a step is repeated when no event tells how it goes.
const LOOK_AGAIN: Duration = Duration::from_millis(150);

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
    match until_prepared(shared, offer).await {
        Some(true) => {}
        Some(false) => return Given::Kept,
        None => {
            cancel(shared, lease.key, shared.holder.clone()).await;
            return Given::NoAnswer;
        }
    }
    // From here on no poll starts. The commit comes only after the last one ended.
    shared.table.drain(target);
    let idle = async {
        shared.table.idle(Some(target)).await;
        Ok(())
    };
    if limited(&*shared.clock, options.drain_ms, idle)
        .await
        .is_err()
    {
        cancel(shared, lease.key, shared.holder.clone()).await;
        return Given::Kept;
    }
    let commit = HandoffStep::Commit {
        lease: lease.clone(),
    };
    match limited(&*shared.clock, CALL_MS, shared.authority.handoff(commit)).await {
        Ok(HandoffState::Moved(_) | HandoffState::Lost(_)) => {
            shared.moved_away(target, lease.token, &successor);
            Given::Moved
        }
        Ok(HandoffState::Void | HandoffState::Open(_)) => Given::Kept,
        // It may have happened. Giving up what may still be ours is always safe: the release names
        // this lease's token and touches no other.
        Err(error) => {
            tracing::warn!(instance = %shared.id, target, %error, "no answer to the commit of a hand-over");
            let _ = shared.give_back(target, "a hand-over had no answer").await;
            Given::Moved
        }
    }
}

/// Repeats the offer until the successor is prepared. `Some(false)` when there is nothing to hand
/// over, `None` when the successor did not answer in time.
async fn until_prepared(shared: &Shared, offer: HandoffStep) -> Option<bool> {
    let deadline = shared.clock.boot().plus(shared.options.answer_ms);
    let mut prepared = shared.prepared.subscribe();
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
            _ = prepared.changed() => {}
            () = tokio::time::sleep(LOOK_AGAIN) => {}
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
        // The reconciler asks as soon as an event tells of the commit.
        if shared.table.is_owned(target) {
            return;
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}
