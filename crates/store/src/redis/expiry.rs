//! Expiry is announced by our own timers (L12): Redis drops a lapsed key on time but reports it
//! when it comes around to it. The leader does so; its leadership is a lease.

use std::{sync::Arc, time::Duration};

use super::{Inner, keys::LEADER_TTL_MS, link::Repeat, seals, wire};
use crate::leading::RESIGN_LIMIT;

/// How many leases one script expires at most, so that none keeps others waiting.
const EXPIRIES_PER_TICK: u64 = 500;
/// The longest sleep of the leader: a lease that is shorter than this and was
/// granted meanwhile is announced that much late at most.
const LONGEST_MS: u64 = 50;
/// How often the others look whether there is a leader.
const LOOK_MS: u64 = LEADER_TTL_MS / 4;

/// Begins the leader's loops: expiry, and beside it the sealing of the history.
pub(super) fn start(inner: &Arc<Inner>) {
    seals::start(inner);
    let candidate = inner.clone();
    inner.leading.start(&inner.runtime, async move {
        candidate.stop.run_until_cancelled(run(&candidate)).await;
        if candidate.leading.leads() {
            let resigned = tick(&candidate, true);
            let _ = tokio::time::timeout(RESIGN_LIMIT, resigned).await;
        }
    });
}

async fn run(inner: &Inner) {
    loop {
        let (mine, sleep_ms) = match tick(inner, false).await {
            Ok(ticked) => ticked,
            Err(error) => {
                tracing::debug!(%error, "expiry waits for the store");
                (false, LOOK_MS)
            }
        };
        inner.leading.set(mine);
        tokio::time::sleep(Duration::from_millis(sleep_ms)).await;
    }
}

/// One round; returns whether this replica leads, and how long to sleep. With `resigns`, the last one of a leader.
pub(super) async fn tick(inner: &Inner, resigns: bool) -> Result<(bool, u64), lease::Error> {
    let mut call = inner.call();
    call.arg(&inner.replica)
        .number(EXPIRIES_PER_TICK)
        .arg(if resigns { "1" } else { "0" });
    // A second tick only finds less to do.
    let reply = inner
        .link
        .run(&inner.scripts.tick, &call, Repeat::Safe)
        .await?;
    let [mine, left] = wire::items(&reply) else {
        return Err(wire::broken("an answer"));
    };
    Ok(match (wire::number(mine), left) {
        (1, ::redis::Value::Int(left)) if *left >= 0 => {
            let left = wire::number(&::redis::Value::Int(*left));
            (true, left.clamp(1, LONGEST_MS))
        }
        (1, _) => (true, LONGEST_MS),
        _ => (false, wire::number(left).saturating_add(1).min(LOOK_MS)),
    })
}
