//! The operations that several doors share: one place for tenants, budgets, time limits and metrics.

use std::{collections::HashSet, future::Future, sync::Arc, time::Duration};

use futures_util::{StreamExt as _, stream};
use lease::{
    Acquire, Acquired, Authority, Cause, Committed, Departure, Error, Expect, Key, Lease, LeaseId,
    LeaseQuery, LeaseRef, Loss, Renew, Renewal, Renewals, Renewed, Revoke, Transaction,
    polling::NODE,
};
use leasehold_api::Code;
use tokio::time::{Instant, timeout};

use crate::{
    App, Reject,
    auth::{Area, Caller, Level},
    frame::too_slow,
    problem::RETRY_SOON,
    registry,
};

/// How many keys are looked at simultaneously when a tenant's caller checks tokens.
const CHECKS_AT_ONCE: usize = 16;

/// Runs one call to the authority and counts it.
pub(crate) async fn measured<T>(
    app: &App,
    op: &'static str,
    outcome: impl FnOnce(&T) -> &'static str,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, Reject> {
    let began = Instant::now();
    let result = call.await;
    let word = match &result {
        Ok(value) => outcome(value),
        Err(Error::Invalid(_)) => "invalid",
        Err(_) => "error",
    };
    app.metrics().operation(op, word, began.elapsed());
    Ok(result?)
}

/// Runs a call to its end even when the caller goes away meanwhile: what ends a lease must not be
/// forgotten half-way.
async fn detached<T: Send + 'static>(
    app: &App,
    call: impl FnOnce(Arc<dyn Authority>) -> lease::Answer<'static, T>,
) -> Result<T, Error> {
    let task = app.tasks().spawn(call(app.shared_authority()));
    task.await
        .unwrap_or_else(|_| Err(Error::Unknown("the call did not finish".into())))
}

/// Keys of a reserved kind belong to the server's own agents: inside the server, or behind a credential
/// with `leases:admin` that is not bound to a tenant, as `leasehold worker` and `leasehold poll` use.
pub(crate) fn may_own<'a>(
    caller: &Caller,
    keys: impl IntoIterator<Item = &'a Key>,
) -> Result<(), Reject> {
    if caller.is_agent() {
        return Ok(());
    }
    match keys.into_iter().find(|key| key.is_reserved()) {
        None => Ok(()),
        Some(key) => Err(Reject::new(
            Code::AuthorizationFailed,
            format!(
                "keys of the kind {} belong to the server's own agents: this needs the scope \
                 leases:admin without a tenant",
                key.kind()
            ),
        )),
    }
}

/// Asks for keys, if the caller may ask again already and there is room.
pub(crate) async fn acquire(
    app: &App,
    caller: &Caller,
    request: Acquire,
) -> Result<Acquired, Reject> {
    let acquired = acquire_expecting(app, caller, request, Vec::new()).await?;
    acquired.ok_or_else(nothing_expected)
}

/// Asks for keys without a budget of its own: for a sign of life, which must get through however many
/// ask for keys.
pub(crate) async fn grant(
    app: &App,
    caller: &Caller,
    request: Acquire,
) -> Result<Acquired, Reject> {
    let acquired = grant_expecting(app, caller, request, Vec::new()).await?;
    acquired.ok_or_else(nothing_expected)
}

fn nothing_expected() -> Reject {
    Reject::new(Code::InternalError, "nothing was expected")
}

/// Asks for keys, to be granted only while these records are as expected. `None` when one of them is
/// not; nothing happened then.
pub(crate) async fn acquire_expecting(
    app: &App,
    caller: &Caller,
    request: Acquire,
    expect: Vec<Expect>,
) -> Result<Option<Acquired>, Reject> {
    may_own(caller, request.want.keys())?;
    let shed = &app.parts().shed;
    let admitted = shed
        .rate(&caller.token_id)
        .and_then(|()| shed.acquire(request.wait_ms > 0));
    let _permit = admitted.inspect_err(|_| app.metrics().turned_away("acquire"))?;
    grant_expecting(app, caller, request, expect).await
}

async fn grant_expecting(
    app: &App,
    caller: &Caller,
    mut request: Acquire,
    expect: Vec<Expect>,
) -> Result<Option<Acquired>, Reject> {
    request.labels = caller.bind(request.labels)?;
    if request.force.is_some() {
        caller.needs(Area::Leases, Level::Admin)?;
        caller.unbound()?;
    }
    request.validate()?;
    registry::guard_keys(app.authority(), caller, request.want.keys()).await?;
    let waits = request.wait_ms > 0;
    let _waiting = waits.then(|| app.metrics().waiter());
    let limit = app.parts().limits.request_timeout() + Duration::from_millis(request.wait_ms);
    let call = measured(
        app,
        // Time in a queue is no latency.
        if waits { "acquire_wait" } else { "acquire" },
        |acquired| match acquired {
            Some(Acquired::Granted { fresh: true, .. }) => "granted",
            Some(Acquired::Granted { fresh: false, .. }) => "again",
            Some(Acquired::Refused(_)) => "refused",
            None => "changed",
        },
        decide(app, request, expect),
    );
    tokio::select! {
        // A server that stops sends its waiters away: dropping the call takes them off the queue.
        () = app.closing().cancelled(), if waits => Err(Reject::new(
            Code::Overloaded,
            "the server is stopping",
        )
        .retry_after(RETRY_SOON)),
        answer = timeout(limit, call) => answer.unwrap_or_else(|_| Err(too_slow())),
    }
}

async fn decide(
    app: &App,
    request: Acquire,
    expect: Vec<Expect>,
) -> Result<Option<Acquired>, Error> {
    if expect.is_empty() {
        return app.authority().acquire(request).await.map(Some);
    }
    let transaction = Transaction {
        expect,
        acquire: Some(request),
        ..Transaction::default()
    };
    Ok(match app.authority().commit(transaction).await? {
        // A transaction does not tell a new grant from a repeated one.
        Committed::Done { leases, .. } => Some(Acquired::Granted {
            leases,
            fresh: true,
        }),
        Committed::Refused(refusal) => Some(Acquired::Refused(refusal)),
        Committed::Conflict { .. } => None,
    })
}

/// A refusal as this caller may see it: another tenant's holder is not named.
pub(crate) fn refused(caller: &Caller, refusal: &lease::Refusal) -> Reject {
    Reject::refused(refusal, names(caller, refusal))
}

fn names(caller: &Caller, refusal: &lease::Refusal) -> bool {
    match &refusal.cause {
        Cause::Held { labels, .. } => caller.sees(labels.tenant()),
        _ => true,
    }
}

/// A refusal with another tenant's holder made unrecognisable.
pub(crate) fn masked(
    caller: &Caller,
    mut refusal: lease::Refusal,
) -> Result<lease::Refusal, Reject> {
    if !names(caller, &refusal)
        && let Cause::Held {
            holder,
            token,
            labels,
            ..
        } = &mut refusal.cause
    {
        *holder = lease::Holder::new("somebody", "else")?;
        *token = lease::Token::ZERO;
        *labels = lease::Labels::default();
    }
    Ok(refusal)
}

/// Keeps leases. A caller that is bound to a tenant reaches only that tenant's leases; any other one
/// is unknown to it.
pub(crate) async fn renew(
    app: &App,
    caller: &Caller,
    request: Renew,
) -> Result<Vec<Renewed>, Reject> {
    request.validate()?;
    if let Renewals::These(renewals) = &request.leases {
        // A presence that was announced at `/holders` is kept like any other lease.
        let keys = renewals.iter().map(|renewal| &renewal.key);
        may_own(caller, keys.filter(|key| key.kind() != NODE))?;
    }
    let Some(tenant) = caller.tenant.as_deref() else {
        return renew_all(app, request).await;
    };
    let own = live_of(app, &request.holder, Some(tenant)).await?;
    let asked = match request.leases {
        Renewals::All => own.iter().map(Renewal::of).collect(),
        Renewals::These(renewals) => renewals,
    };
    let own: HashSet<Key> = own.into_iter().map(|lease| lease.key).collect();
    let mine: Vec<bool> = asked.iter().map(|it| own.contains(&it.key)).collect();
    let foreign: Vec<Renewed> = asked
        .iter()
        .zip(&mine)
        .filter(|(_, mine)| !**mine)
        .map(|(it, _)| Renewed {
            key: it.key.clone(),
            token: it.token,
            outcome: Err(Loss::Unknown),
        })
        .collect();
    let keep = asked
        .into_iter()
        .zip(&mine)
        .filter_map(|(it, mine)| mine.then_some(it))
        .collect();
    let kept = renew_all(
        app,
        Renew {
            holder: request.holder,
            leases: Renewals::These(keep),
        },
    )
    .await?;
    // Back into the order of the request.
    let (mut kept, mut foreign) = (kept.into_iter(), foreign.into_iter());
    Ok(mine
        .into_iter()
        .filter_map(|mine| if mine { kept.next() } else { foreign.next() })
        .collect())
}

async fn renew_all(app: &App, request: Renew) -> Result<Vec<Renewed>, Reject> {
    measured(
        app,
        "renew",
        |renewed: &Vec<Renewed>| {
            if renewed.iter().all(|it| it.outcome.is_ok()) {
                "kept"
            } else {
                "lost"
            }
        },
        app.authority().renew(request),
    )
    .await
}

/// The live leases of one holder, all pages.
pub(crate) async fn live_of(
    app: &App,
    holder: &lease::Holder,
    tenant: Option<&str>,
) -> Result<Vec<Lease>, Reject> {
    let mut query = LeaseQuery {
        holder: Some(holder.name.clone()),
        status: Some(lease::Status::Active),
        tenant: tenant.map(str::to_owned),
        limit: crate::query::MAX_PAGE,
        ..LeaseQuery::default()
    };
    let mut found = Vec::new();
    // As many as one renewal may name.
    while found.len() < Renew::MAX_LEASES {
        let page = app.authority().leases(query.clone()).await?;
        query.after = page.items.last().map(|lease| lease.key.clone());
        found.extend(page.items.into_iter().filter(|it| it.holder == *holder));
        if !page.more {
            break;
        }
    }
    Ok(found)
}

/// A lease by its id, if this caller may know of it.
pub(crate) async fn find(app: &App, caller: &Caller, id: &str) -> Result<Lease, Reject> {
    // An id that no lease can have is unknown like any other.
    let id: LeaseId = id.parse().map_err(|_| Reject::no_lease())?;
    app.authority()
        .lease_by_id(id)
        .await?
        .filter(|lease| caller.sees(lease.labels.tenant()))
        .ok_or_else(Reject::no_lease)
}

/// Keeps one lease that was found by its id.
pub(crate) async fn renew_one(
    app: &App,
    lease: &Lease,
    stats: Option<Arc<str>>,
) -> Result<Lease, Reject> {
    let request = Renew {
        holder: lease.holder.clone(),
        leases: Renewals::These(vec![Renewal {
            stats,
            ..Renewal::of(lease)
        }]),
    };
    request.validate()?;
    let outcome = renew_all(app, request).await?.pop().map(|it| it.outcome);
    match outcome {
        Some(Ok(lease)) => Ok(lease),
        // The history may remember the end of a lease that its key no longer does.
        Some(Err(Loss::Unknown)) | None => Err(Reject::lost(&ended(lease.status))),
        Some(Err(loss)) => Err(Reject::lost(&loss)),
    }
}

pub(crate) fn ended(status: lease::Status) -> Loss {
    match status {
        lease::Status::Expired => Loss::Expired,
        lease::Status::Released => Loss::Released,
        lease::Status::Revoked => Loss::Revoked { why: "".into() },
        lease::Status::Active | lease::Status::Pending => Loss::Unknown,
    }
}

/// Gives a lease back (L16).
pub(crate) async fn release(app: &App, caller: &Caller, lease: LeaseRef) -> Result<bool, Reject> {
    may_own(caller, [&lease.key])?;
    if caller.tenant.is_some() {
        let live = app.authority().lease(lease.key.clone()).await?;
        if !live.is_some_and(|live| caller.sees(live.labels.tenant())) {
            return Ok(false);
        }
    }
    let call = detached(app, |authority| {
        Box::pin(async move { authority.release(lease).await })
    });
    let word = |&ended: &bool| if ended { "released" } else { "nothing" };
    measured(app, "release", word, call).await
}

/// Takes a lease away (L17).
pub(crate) async fn revoke(
    app: &App,
    caller: &Caller,
    request: Revoke,
) -> Result<Option<Lease>, Reject> {
    request.validate()?;
    if caller.tenant.is_some() {
        let lease = app.authority().lease_by_id(request.id).await?;
        if !lease.is_some_and(|lease| caller.sees(lease.labels.tenant())) {
            return Ok(None);
        }
    }
    let call = detached(app, |authority| {
        Box::pin(async move { authority.revoke(request).await })
    });
    let word = |lease: &Option<Lease>| {
        if lease.is_some() {
            "revoked"
        } else {
            "nothing"
        }
    };
    measured(app, "revoke", word, call).await
}

/// A holder's end is known (L15). For a caller that is bound to a tenant, that of its tenant's holder: a
/// namesake in another tenant is somebody else.
pub(crate) async fn depart(
    app: &App,
    caller: &Caller,
    departure: Departure,
) -> Result<Vec<Lease>, Reject> {
    if !caller.is_agent() {
        let query = LeaseQuery {
            holder: Some(departure.holder().name.clone()),
            limit: Renew::MAX_LEASES,
            ..LeaseQuery::default()
        };
        let page = app.authority().leases(query).await?;
        let foreign = |lease: &Lease| !caller.sees(lease.labels.tenant());
        // A holder's own presence goes with it; whatever else is reserved shows an agent.
        let own = page.items.iter().filter(|lease| {
            !foreign(lease) && lease.holder == *departure.holder() && lease.key.kind() != NODE
        });
        may_own(caller, own.map(|lease| &lease.key))?;
        if caller.tenant.is_some() && (page.more || page.items.iter().any(foreign)) {
            let own = page.items.into_iter().filter(|lease| !foreign(lease));
            return release_departed(app, &departure, own.collect()).await;
        }
    }
    let call = detached(app, |authority| {
        Box::pin(async move { authority.depart(departure).await })
    });
    measured(app, "depart", |_| "departed", call).await
}

/// Releases one by one what a departure ends, when its holder has namesakes that stay.
async fn release_departed(
    app: &App,
    departure: &Departure,
    own: Vec<Lease>,
) -> Result<Vec<Lease>, Reject> {
    let ended = |lease: &Lease| {
        lease.status == lease::Status::Active
            && match departure {
                Departure::Died(holder) => lease.holder == *holder && lease.release_on_death,
                Departure::Left(holder) => lease.holder == *holder,
                Departure::Succeeded(holder) => lease.holder != *holder,
            }
    };
    let mut released = Vec::new();
    for lease in own.into_iter().filter(ended) {
        let reference = LeaseRef::from(&lease);
        let call = detached(app, |authority| {
            Box::pin(async move { authority.release(reference).await })
        });
        if measured(app, "depart", |_| "departed", call).await? {
            released.push(lease);
        }
    }
    Ok(released)
}

/// Whether tokens still count. What another tenant holds is unknown to a caller that is bound to one.
pub(crate) async fn check(
    app: &App,
    caller: &Caller,
    tokens: Vec<(Key, lease::Token)>,
) -> Result<Vec<lease::Verdict>, Reject> {
    let mut verdicts = app.authority().check(tokens.clone()).await?;
    if caller.tenant.is_some() {
        let leases = stream::iter(
            tokens
                .into_iter()
                .map(|(key, _)| app.authority().lease(key)),
        )
        .buffered(CHECKS_AT_ONCE)
        .collect::<Vec<_>>()
        .await;
        for (verdict, lease) in verdicts.iter_mut().zip(leases) {
            if lease?.is_some_and(|lease| !caller.sees(lease.labels.tenant())) {
                *verdict = lease::Verdict::Unknown;
            }
        }
    }
    Ok(verdicts)
}
