//! Asking for keys: from the request to guards, with nothing left behind when the asker goes away.

use std::sync::Arc;

use lease::{Acquire, Acquired, BootMillis, Invalid, Key, Lease, Renew, Renewal, Renewals, Want};
use tokio::sync::oneshot;

use super::{Alive, Core, Error, Guard, Holding, Keeper, registry::Busy};
use leasehold_clock::Backoff;

use crate::wait::limited;

/// How often a grant that came after a wait is confirmed before it is given back.
const CONFIRM_ATTEMPTS: u32 = 3;
/// The longest that a grant is waited for when its authority is slow: as long as a command waits for its answer.
const PATIENCE_MS: u64 = 5_000;

impl Keeper {
    /// Asks for keys; one guard per lease, in the order of the answer.
    ///
    /// A key that this very keeper has already is refused like one that somebody else has: two
    /// tasks of one process exclude each other too. Dropping the future ends a wait, and gives back
    /// what may have been granted in that moment.
    pub async fn acquire(&self, mut request: Acquire) -> Result<Vec<Guard>, Error> {
        let alive = self.alive.clone();
        request.validate().map_err(lease::Error::from)?;
        if request.holder != alive.core.holder {
            let wrong = Invalid::new("holder", "the holder that the keeper was started for");
            return Err(lease::Error::from(wrong).into());
        }
        if matches!(request.want, Want::Any(_)) && request.labels.request().is_none() {
            // So that an answer that was lost can be asked for again (L5).
            let id = crate::new_incarnation();
            request.labels = request
                .labels
                .with_request(id.as_str())
                .map_err(lease::Error::from)?;
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
            let busy = core.registry().ask(&keys, &core.holder);
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
        self.core.registry().asked(&self.keys);
        self.core.changed();
    }
}

async fn ask(
    alive: Arc<Alive>,
    mut request: Acquire,
    asking: Asking,
    mut answer: oneshot::Sender<Result<Vec<Guard>, Error>>,
) {
    let core = alive.core.clone();
    let wait_until = core.clock.boot().plus(request.wait_ms);
    let mut repeat = Repeat::default();
    let (acquired, sent) = loop {
        let sent = core.clock.boot();
        request.wait_ms = wait_until.since(sent);
        let acquired = ask_once(&core, &request, &mut answer).await;
        match &acquired {
            // Of a pool the same request gets the same slot again, so that no slot is left to nobody.
            Err(error)
                if asking.pool
                    && !error.has_no_side_effects()
                    && error.is_retryable()
                    && !answer.is_closed()
                    && repeat.pause(&core).await => {}
            _ => break (acquired, sent),
        }
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
            // Somebody who still listens may repeat the request for the pool, and have the slot.
            if !error.has_no_side_effects() && (!asking.pool || answer.is_closed()) {
                give_back_orphans(&core, &request, asking.pool).await;
            }
            Err(error.into())
        }
    };
    drop(asking);
    // When nobody listens any more the guards are dropped here, which gives the leases back.
    drop(answer.send(outcome));
}

async fn ask_once(
    core: &Core,
    request: &Acquire,
    answer: &mut oneshot::Sender<Result<Vec<Guard>, Error>>,
) -> Result<Acquired, lease::Error> {
    let limit_ms = request.wait_ms + patience_ms(core, request);
    let waits = request.wait_ms > 0;
    let call = limited(
        &*core.clock,
        limit_ms,
        core.authority.acquire(request.clone()),
    );
    tokio::select! {
        acquired = call => acquired.unwrap_or_else(|| {
            Err(lease::Error::Unknown(format!("no answer within {limit_ms} ms")))
        }),
        // Only a wait is cut short; a plain request takes seconds at most, and then its outcome is known.
        () = answer.closed(), if waits => Err(lease::Error::Unknown("nobody waits any more".into())),
    }
}

/// How long the answer may take, beyond the wait that was asked for. No deadline runs yet: an authority that is busy
/// for a second should cost nobody a lease of minutes. One of a second would be over by then; what is left of it after
/// two thirds is enough for a renewal.
fn patience_ms(core: &Core, request: &Acquire) -> u64 {
    let worth_ms = (request.ttl.millis() / 3 * 2).min(PATIENCE_MS);
    worth_ms.max(core.options.call_limit_ms)
}

/// Pauses between the repeats of a request, for as long as one call may take.
struct Repeat {
    backoff: Backoff,
    until: Option<BootMillis>,
}

impl Default for Repeat {
    fn default() -> Self {
        Self {
            backoff: Backoff::new(20, 500),
            until: None,
        }
    }
}

impl Repeat {
    /// Whether there is time for one more, after a pause.
    async fn pause(&mut self, core: &Core) -> bool {
        let now = core.clock.boot();
        let until = *self
            .until
            .get_or_insert_with(|| now.plus(core.options.call_limit_ms));
        let next = now.plus(self.backoff.next_ms());
        if next >= until {
            return false;
        }
        core.clock.sleep_until(next).await;
        true
    }
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
                        Err(Error::Lost(loss))
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

/// An acquire without an answer may have been granted, and nobody repeats it. What this holder has of the wanted keys and
/// no guard knows of is given back; when that cannot be found out for as long as one call may take, the
/// ttl does it, since only known leases are renewed.
pub(super) async fn give_back_orphans(core: &Core, request: &Acquire, pool: bool) {
    let until = core.clock.boot().plus(core.options.call_limit_ms);
    for key in request.want.keys() {
        let Some(lease) = look_up(core, key, until).await else {
            continue;
        };
        let mut registry = core.registry();
        // Of a pool, what another request was granted is that one's.
        let asked_for = !pool || lease.labels.request() == request.labels.request();
        if lease.holder == core.holder
            && registry.find(&lease.key, lease.token).is_none()
            && asked_for
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
