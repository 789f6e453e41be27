//! Expiry is announced by our own timers (L12): Redis drops a lapsed key on time but tells about it
//! when it comes around to it. The replica that has the duty does so; the duty itself is a lease.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use super::{Inner, keys::DUTY_TTL_MS, link::Repeat, seals, wire};

/// How many leases one script expires at most, so that none keeps others waiting.
const EXPIRIES_PER_TICK: u64 = 500;
/// The longest sleep of the replica that has the duty: a lease that is shorter than this and was
/// granted meanwhile is announced that much late at most.
const LONGEST_MS: u64 = 50;
/// How often the others look whether the duty is free.
const LOOK_MS: u64 = DUTY_TTL_MS / 4;

/// Begins the duty's loops: expiry, and beside it the sealing of the history.
pub(super) fn start(inner: &Arc<Inner>) {
    let stop = inner.stop.clone();
    seals::start(inner);
    let task = run(inner.clone());
    inner.runtime.spawn(async move {
        stop.run_until_cancelled(task).await;
    });
}

async fn run(inner: Arc<Inner>) {
    loop {
        let (mine, sleep_ms) = match tick(&inner).await {
            Ok(ticked) => ticked,
            Err(error) => {
                tracing::debug!(%error, "expiry waits for the store");
                (false, LOOK_MS)
            }
        };
        inner.leads.store(mine, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(sleep_ms)).await;
    }
}

/// One round; returns whether the duty is this replica's, and how long to sleep.
pub(super) async fn tick(inner: &Inner) -> Result<(bool, u64), lease::Error> {
    let mut call = inner.call();
    call.arg(&inner.replica).number(EXPIRIES_PER_TICK);
    // A second tick only finds less to do.
    let reply = inner.run(&inner.scripts.tick, &call, Repeat::Safe).await?;
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
