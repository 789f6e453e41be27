//! Asking for keys: from the request to guards, with nothing left behind when the asker goes away.

use std::sync::Arc;

use lease::{Acquire, Acquired, BootMillis, Invalid, Key, Lease, Renew, Renewal, Renewals, Want};
use tokio::sync::oneshot;

use super::{Alive, Core, Error, Guard, Holding, Lost, registry::Busy};
use leasehold_clock::Backoff;

use crate::wait::limited;

/// How often a grant that came after a wait is confirmed before it is given back.
const CONFIRM_ATTEMPTS: u32 = 3;

pub(super) async fn acquire(alive: Arc<Alive>, request: Acquire) -> Result<Vec<Guard>, Error> {
    request.validate().map_err(lease::Error::from)?;
    if request.holder != alive.core.holder {
        let wrong = Invalid::new("holder", "the holder that the keeper was started for");
        return Err(lease::Error::from(wrong).into());
    }
    let asking = Asking::begin(&alive.core, &request).await?;
    let (answer, guards) = oneshot::channel();
    // A task of its own: whoever goes away in the middle of the request does not leave a lease
    // behind that nobody knows of.
    let core = alive.core.clone();
    let runtime = core.runtime.clone();
    core.tasks
        .spawn_on(ask(alive, request, asking, answer), &runtime);
    guards.await.unwrap_or(Err(Error::Stopped))
}

/// The keys that one acquire is after are marked as asked for while this exists.
struct Asking {
    core: Arc<Core>,
    keys: Vec<Key>,
    pool: bool,
}

impl Asking {
    /// Marks the keys, after a release of them that is under way, and after those guards of this
    /// keeper that have them, as far as the request waits.
    async fn begin(core: &Arc<Core>, request: &Acquire) -> Result<Self, Error> {
        let (keys, pool) = match &request.want {
            Want::All(keys) => (keys.clone(), false),
            Want::Any(_) => (Vec::new(), true),
        };
        let start = core.clock.boot();
        let mut changes = core.changes.subscribe();
        loop {
            let busy = {
                let mut registry = core.registry();
                let asked = registry.ask(&keys, &core.holder);
                if asked.is_ok() && pool {
                    registry.pools += 1;
                }
                asked
            };
            let (error, patience_ms) = match busy {
                Ok(()) => break,
                Err(Busy::Stopping) => return Err(Error::Stopped),
                Err(Busy::Here(refusal)) => (Error::Refused(Box::new(refusal)), request.wait_ms),
                Err(Busy::Releasing) => (
                    lease::Error::Unavailable("its release is under way".into()).into(),
                    request.wait_ms.max(core.options.call_limit_ms),
                ),
            };
            let left = start.plus(patience_ms).since(core.clock.boot());
            if left == 0
                || limited(&*core.clock, left, changes.changed())
                    .await
                    .is_none()
            {
                return Err(error);
            }
        }
        Ok(Self {
            core: core.clone(),
            keys,
            pool,
        })
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let mut registry = self.core.registry();
        registry.asked(&self.keys);
        if self.pool {
            registry.pools -= 1;
        }
        drop(registry);
        self.core.changed();
    }
}

async fn ask(
    alive: Arc<Alive>,
    request: Acquire,
    asking: Asking,
    mut answer: oneshot::Sender<Result<Vec<Guard>, Error>>,
) {
    let core = alive.core.clone();
    let sent = core.clock.boot();
    let limit_ms = request.wait_ms + core.options.call_limit_ms;
    let waits = request.wait_ms > 0;
    let call = limited(
        &*core.clock,
        limit_ms,
        core.authority.acquire(request.clone()),
    );
    let acquired = tokio::select! {
        acquired = call => acquired.unwrap_or_else(|| {
            Err(lease::Error::Unknown(format!("no answer within {limit_ms} ms")))
        }),
        // Only a wait is cut short; a plain request is quick, and then its outcome is known.
        () = answer.closed(), if waits => Err(lease::Error::Unknown("nobody waits any more".into())),
    };
    let outcome = match acquired {
        Ok(Acquired::Granted { leases, .. }) => {
            let result = settle(&core, leases, sent).await;
            result.and_then(|(leases, sent)| {
                leases
                    .iter()
                    .map(|lease| adopt(&alive, lease, sent))
                    .collect()
            })
        }
        Ok(Acquired::Refused(refusal)) => Err(Error::Refused(Box::new(refusal))),
        Err(error) => {
            if !error.has_no_side_effects() {
                give_back_orphans(&core, &request, asking.pool).await;
            }
            Err(error.into())
        }
    };
    drop(asking);
    // When nobody listens any more the guards are dropped here, which gives the leases back.
    drop(answer.send(outcome));
}

/// A grant counts from before its request was sent. After a wait most of that time, or all of it, is
/// gone: a renewal sent now gives the lease its full time.
async fn settle(
    core: &Core,
    leases: Vec<Lease>,
    sent: BootMillis,
) -> Result<(Vec<Lease>, BootMillis), Error> {
    let shortest = leases.iter().map(|lease| lease.ttl.millis()).min();
    if core.clock.boot().since(sent) < shortest.unwrap_or(0) / 3 {
        return Ok((leases, sent));
    }
    let mut backoff = Backoff::new(20, 500);
    let mut failure = lease::Error::Unknown("granted, but not confirmed".into());
    for _ in 0..CONFIRM_ATTEMPTS {
        let sent = core.clock.boot();
        let renew = Renew {
            holder: core.holder.clone(),
            leases: Renewals::These(leases.iter().map(Renewal::of).collect()),
        };
        let call = core.authority.renew(renew);
        match limited(&*core.clock, core.options.call_limit_ms, call).await {
            Some(Ok(renewed)) => {
                let confirmed: Result<Vec<_>, _> =
                    renewed.into_iter().map(|one| one.outcome).collect();
                return match confirmed {
                    Ok(confirmed) if confirmed.len() == leases.len() => Ok((confirmed, sent)),
                    Ok(_) => Err(lease::Error::Broken("a renewal without an answer".into()).into()),
                    Err(loss) => {
                        give_back_all(core, &leases);
                        Err(Error::Lost(Lost::from(loss)))
                    }
                };
            }
            Some(Err(error)) => failure = error,
            None => {}
        }
        let pause = core.clock.boot().plus(backoff.next_ms());
        core.clock.sleep_until(pause).await;
    }
    give_back_all(core, &leases);
    Err(failure.into())
}

fn give_back_all(core: &Core, leases: &[Lease]) {
    let mut registry = core.registry();
    for lease in leases {
        registry.give_back_orphan(lease);
    }
    drop(registry);
    core.release.notify_one();
}

/// Puts a granted lease into the keeper's care.
pub(super) fn adopt(alive: &Arc<Alive>, lease: &Lease, sent: BootMillis) -> Result<Guard, Error> {
    let core = &alive.core;
    if lease.holder != core.holder {
        let wrong = Invalid::new("holder", "the holder that the keeper was started for");
        return Err(lease::Error::from(wrong).into());
    }
    let key = lease.key.clone();
    let holding = Arc::new(Holding::new(
        lease.clone(),
        sent,
        core.options.margin_ms,
        core.clock.clone(),
    ));
    let mut registry = core.registry();
    let refused = if registry.stopping {
        Some(Error::Stopped)
    } else {
        holding.lost().map(Error::Lost)
    };
    if let Some(error) = refused {
        registry.give_back_orphan(lease);
        drop(registry);
        core.release.notify_one();
        return Err(error);
    }
    if registry.find(&key, lease.token).is_some() {
        let taken = registry.here(&key, lease.token, &core.holder);
        return Err(Error::Refused(Box::new(taken)));
    }
    registry.hold(key, holding.clone());
    drop(registry);
    let guard = Guard::new(holding, alive.clone());
    core.renew.notify_one();
    core.look.notify_one();
    Ok(guard)
}

/// An acquire without an answer may have been granted. What this holder has of the wanted keys and
/// no guard knows of is given back; when that cannot be found out for as long as one call may take, the
/// ttl does it, since only known leases are renewed.
async fn give_back_orphans(core: &Core, request: &Acquire, pool: bool) {
    let until = core.clock.boot().plus(core.options.call_limit_ms);
    for key in request.want.keys() {
        let Some(lease) = look_up(core, key, until).await else {
            continue;
        };
        let mut registry = core.registry();
        // Another pool request of this keeper may own what was found.
        let maybe_others = pool && registry.pools > 1;
        if lease.holder == core.holder
            && registry.find(&lease.key, lease.token).is_none()
            && !maybe_others
        {
            registry.give_back_orphan(&lease);
            core.release.notify_one();
        }
    }
}

/// The lease of a key, asked for until there is an answer: whatever swallowed the first one may take a
/// moment to pass.
async fn look_up(core: &Core, key: &Key, until: BootMillis) -> Option<Lease> {
    let mut backoff = Backoff::new(20, 500);
    loop {
        let left = until.since(core.clock.boot()).max(1);
        match limited(&*core.clock, left, core.authority.lease(key.clone())).await {
            Some(Ok(lease)) => return lease,
            Some(Err(error)) if !error.is_retryable() => return None,
            Some(Err(_)) => {}
            None => return None,
        }
        let again = core.clock.boot().plus(backoff.next_ms());
        if again >= until {
            return None;
        }
        core.clock.sleep_until(again).await;
    }
}
