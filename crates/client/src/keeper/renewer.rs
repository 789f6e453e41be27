//! Renews everything a holder has in one call, every third of the shortest ttl, counted from the last
//! renewal that succeeded (L9). A call that failed is tried again until the deadline (L11).

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, atomic::Ordering},
};

use futures_util::future::join_all;
use lease::{
    BootMillis, Renew, Renewals,
    planted::{Bug, planted},
};

use super::{Core, Holding, Loss};
use leasehold_clock::Backoff;

use crate::wait::{jitter, limited};

/// Never renew more often than this, whatever the ttl.
const MIN_PAUSE_MS: u64 = 5;
/// The least time that a renewal is given, however near its deadline is.
const MIN_LIMIT_MS: u64 = 10;

/// How the last attempts went.
struct Attempts {
    backoff: Backoff,
    /// When to try again after a failure.
    retry_at: Option<BootMillis>,
    /// Calls in a row that took too long: each doubles the time of the next, so that an authority
    /// that is slow but alive is not given up on.
    too_slow: u32,
    last: BootMillis,
}

pub(super) async fn run(core: Arc<Core>) {
    let mut attempts = Attempts {
        backoff: Backoff::new(50, 2_000),
        retry_at: None,
        too_slow: 0,
        last: core.clock.boot(),
    };
    let mut first = true;
    loop {
        let at = next(&core, &attempts, first);
        let wait = async {
            match at {
                Some(at) => core.clock.sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = core.end.cancelled() => return,
            () = core.renew.notified() => {}
            () = wait => {}
        }
        let now = core.clock.boot();
        let everything = core.verify.swap(false, Ordering::AcqRel);
        if everything || at.is_some_and(|at| now >= at) {
            let due = due(&core, now, everything);
            if !due.is_empty() {
                first = false;
                renew(&core, due, &mut attempts).await;
            }
        }
    }
}

/// When the next call is to be made, if anything is held.
fn next(core: &Core, attempts: &Attempts, first: bool) -> Option<BootMillis> {
    let registry = core.registry();
    let planned = registry
        .held()
        .map(|holding| {
            let (renew_at, interval) = pace(core, holding);
            let early = jitter(interval * core.options.jitter_percent.min(50) / 100);
            renew_at.get().saturating_sub(early)
        })
        .min()?;
    let planned = attempts.retry_at.map_or(planned, BootMillis::get);
    let soonest = if first {
        0
    } else {
        attempts.last.plus(MIN_PAUSE_MS).get()
    };
    Some(BootMillis::new(planned.max(soonest)))
}

/// When a lease is renewed next, and how often: every third of its ttl, or more often when asked to.
fn pace(core: &Core, holding: &Holding) -> (BootMillis, u64) {
    let plan = holding.plan();
    let third = plan.ttl_ms / 3;
    let interval = core
        .options
        .renew_every_ms
        .map_or(third, |asked| asked.clamp(1, third.max(1)));
    let sooner = third.saturating_sub(interval);
    let renew_at = plan.renew_at.get().saturating_sub(sooner);
    (BootMillis::new(renew_at), interval)
}

/// What a call made now should cover: all that has used up half of its interval. So leases with very
/// different ttls share calls without the long ones being renewed at the pace of the short ones.
fn due(core: &Core, now: BootMillis, everything: bool) -> Vec<Arc<Holding>> {
    let held: Vec<_> = core.registry().held().cloned().collect();
    held.into_iter()
        .filter(|holding| {
            let (renew_at, interval) = pace(core, holding);
            everything || now.plus(interval / 2) >= renew_at
        })
        .collect()
}

async fn renew(core: &Arc<Core>, due: Vec<Arc<Holding>>, attempts: &mut Attempts) {
    attempts.last = core.clock.boot();
    let calls = due
        .chunks(Renew::MAX_LEASES)
        .map(|chunk| call(core, chunk, attempts.too_slow));
    let results = join_all(calls).await;
    let slow = results.contains(&Outcome::TooSlow);
    attempts.too_slow = if slow {
        attempts.too_slow.saturating_add(1)
    } else {
        0
    };
    if results.iter().all(|&outcome| outcome == Outcome::Answered) {
        attempts.backoff.reset();
        attempts.retry_at = None;
    } else {
        // A tenth of the shortest ttl keeps several attempts before any deadline.
        let shortest = due.iter().map(|holding| holding.plan().ttl_ms).min();
        let most = (shortest.unwrap_or(1_000) / 10).max(MIN_PAUSE_MS);
        let pause = attempts.backoff.next_within_ms(most);
        attempts.retry_at = Some(core.clock.boot().plus(pause));
    }
    // Deadlines moved, or states changed.
    core.look.notify_one();
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Answered,
    Failed,
    TooSlow,
}

/// One call with its own time limit: it can delay neither a deadline nor the next attempt.
async fn call(core: &Arc<Core>, holdings: &[Arc<Holding>], too_slow: u32) -> Outcome {
    // Before the request is sent: from here on the new deadline counts (L10).
    let sent = core.clock.boot();
    let left = holdings
        .iter()
        .map(|holding| holding.plan().stops_at.since(sent))
        .min()
        .unwrap_or(0);
    let limit_ms = core
        .options
        .call_limit_ms
        .saturating_mul(1 << too_slow.min(6))
        .min(left / 3)
        .max(MIN_LIMIT_MS);
    let request = Renew {
        holder: core.holder.clone(),
        leases: Renewals::These(holdings.iter().map(|holding| holding.renewal()).collect()),
    };
    let answer = limited(&*core.clock, limit_ms, core.authority.renew(request)).await;
    let renewed = match answer {
        Some(Ok(renewed)) => renewed,
        Some(Err(error)) => {
            if planted(Bug::ErrorIsALoss) {
                for holding in holdings {
                    core.lose(holding, Loss::Unknown);
                }
            }
            unsure(core, holdings, &error);
            return Outcome::Failed;
        }
        None => {
            unsure(
                core,
                holdings,
                &format_args!("no answer within {limit_ms} ms"),
            );
            return Outcome::TooSlow;
        }
    };
    let mut outcomes: HashMap<_, _> = renewed
        .into_iter()
        .map(|one| ((one.key, one.token), one.outcome))
        .collect();
    let mut outcome = Outcome::Answered;
    for holding in holdings {
        let reference = holding.reference();
        match outcomes.remove(&(reference.key, reference.token)) {
            Some(Ok(lease)) if planted(Bug::DeadlineFromAnswer) => {
                holding.renewed(core.clock.boot(), lease);
            }
            Some(Ok(lease)) => holding.renewed(sent, lease),
            Some(Err(loss)) => core.lose(holding, loss),
            // An answer that leaves a lease out says nothing about it.
            None => {
                holding.unsure();
                outcome = Outcome::Failed;
            }
        }
    }
    outcome
}

/// Nothing is known about these: the first attempt that failed is a warning, the others are details.
fn unsure(core: &Core, holdings: &[Arc<Holding>], reason: &dyn fmt::Display) {
    let mut first = false;
    for holding in holdings {
        first |= holding.unsure();
    }
    let (holder, leases) = (&core.holder, holdings.len());
    if first {
        tracing::warn!(%holder, leases, %reason, "renewal failed; leases stay valid until their deadlines");
    } else {
        tracing::debug!(%holder, leases, %reason, "renewal failed again");
    }
}
