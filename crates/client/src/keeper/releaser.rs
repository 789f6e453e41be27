//! Gives leases back, apart from whoever let go of them: a dropped guard, a cancelled request or a
//! task that ended never skips a release, and never waits for one.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::{Core, registry::Release};
use leasehold_clock::Backoff;

use crate::wait::limited;

/// How many releases are under way concurrently.
const CONCURRENT: usize = 32;

pub(super) async fn run(core: Arc<Core>) {
    let mut under_way = JoinSet::new();
    loop {
        while under_way.len() < CONCURRENT
            && let Some(release) = next(&core)
        {
            under_way.spawn(give_back(core.clone(), release));
        }
        tokio::select! {
            () = core.release.notified() => {}
            Some(_) = under_way.join_next() => {}
            // What was let go of is still given back; each release has its time limit.
            () = core.end.cancelled(), if under_way.is_empty() => match next(&core) {
                Some(release) => { under_way.spawn(give_back(core.clone(), release)); }
                None => return,
            },
        }
    }
}

fn next(core: &Core) -> Option<Release> {
    core.registry().next_release()
}

async fn give_back(core: Arc<Core>, release: Release) {
    let key = release.lease.key.clone();
    let worth_ms = release.worth_ms.min(core.options.release_limit_ms);
    let outcome = limited(&*core.clock, worth_ms, until_answered(&core, &release))
        .await
        .unwrap_or_else(|| {
            Err(lease::Error::Unknown(
                "no answer to the release; the lease ends with its ttl".into(),
            ))
        });
    if let Err(error) = &outcome {
        tracing::warn!(%key, holder = %core.holder, %error, "a release failed");
    }
    core.registry().released(&key);
    core.changed();
    if let Some(done) = release.done {
        // Whoever asked may be gone.
        drop(done.send(outcome));
    }
}

/// A release is safe to repeat (L16).
async fn until_answered(core: &Core, release: &Release) -> Result<bool, lease::Error> {
    let mut backoff = Backoff::new(50, 1_000);
    loop {
        let call = core.authority.release(release.lease.clone());
        match limited(&*core.clock, core.options.call_limit_ms, call).await {
            Some(Ok(released)) => return Ok(released),
            Some(Err(error)) if !error.is_retryable() => return Err(error),
            Some(Err(_)) | None => {}
        }
        let pause = core.clock.boot().plus(backoff.next_ms());
        core.clock.sleep_until(pause).await;
    }
}
