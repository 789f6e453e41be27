//! Acquiring keys.

use std::{future::Future, time::Duration};

use lease::{
    Acquire, Acquired, Cause, Committed, Expect, Key, Transaction, Want,
    polling::{NODE, WEIGHT},
};
use leasehold_api::Code;
use tokio::time::timeout;

use super::{may_own, measured};
use crate::{
    App, Reject,
    auth::{Area, Caller, Level},
    frame::too_slow,
    problem::RETRY_SOON,
    registry,
    shed::Permit,
};

/// Out of which budget an acquire is admitted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Budget {
    /// That of acquires, if the caller may ask again already and there is room.
    Acquires,
    /// None: a sign of life must get through however many ask for keys.
    Presence,
}

/// Asks for keys. The request is well formed.
pub(crate) async fn acquire(
    app: &App,
    caller: &Caller,
    mut request: Acquire,
    budget: Budget,
) -> Result<Acquired, Reject> {
    let _permit = admit(app, caller, &mut request, budget).await?;
    let wait_ms = request.wait_ms;
    let call = app.authority().acquire(request);
    // Time in a queue is no latency.
    let op = if wait_ms > 0 {
        "acquire_wait"
    } else {
        "acquire"
    };
    in_time(app, wait_ms, measured(app, op, word, call)).await
}

/// Announces a holder, or keeps its presence.
pub(crate) async fn announce(
    app: &App,
    caller: &Caller,
    mut presence: Acquire,
) -> Result<Acquired, Reject> {
    if presence.labels.get(WEIGHT).is_some() && !caller.is_agent() {
        // Targets would be assigned to it.
        return Err(Reject::new(
            Code::AuthorizationFailed,
            "the label weight announces an instance that polls: this needs the scope leases:admin \
             without a tenant",
        ));
    }
    if let Some(tenant) = &caller.tenant {
        // A name is given once within a tenant.
        let name = format!("{tenant}/{}", presence.holder.name.as_str());
        presence.want = Want::one(Key::new(NODE, &name)?);
    }
    acquire(app, caller, presence, Budget::Presence).await
}

/// Asks for keys, to be granted only while these records are as expected. `None` when one of them is
/// not; nothing happened then.
pub(crate) async fn acquire_expecting(
    app: &App,
    caller: &Caller,
    mut request: Acquire,
    expect: Vec<Expect>,
) -> Result<Option<Acquired>, Reject> {
    let _permit = admit(app, caller, &mut request, Budget::Acquires).await?;
    let call = async {
        let transaction = Transaction {
            expect,
            acquire: Some(request),
            ..Transaction::default()
        };
        Ok(match app.authority().commit(transaction).await? {
            // A transaction does not distinguish a new grant from a repeated one.
            Committed::Done { leases, .. } => Some(Acquired::Granted {
                leases,
                fresh: true,
            }),
            Committed::Refused(refusal) => Some(Acquired::Refused(refusal)),
            Committed::Conflict { .. } => None,
        })
    };
    let word = |acquired: &Option<Acquired>| acquired.as_ref().map_or("changed", word);
    in_time(app, 0, measured(app, "acquire", word, call)).await
}

fn word(acquired: &Acquired) -> &'static str {
    match acquired {
        Acquired::Granted { fresh: true, .. } => "granted",
        Acquired::Granted { fresh: false, .. } => "again",
        Acquired::Refused(_) => "refused",
    }
}

/// Whether the caller may ask for this, and whether there is room for it.
async fn admit(
    app: &App,
    caller: &Caller,
    request: &mut Acquire,
    budget: Budget,
) -> Result<Option<Permit>, Reject> {
    let permit = match budget {
        Budget::Presence => None,
        Budget::Acquires => {
            may_own(caller, request.want.keys())?;
            let shed = &app.parts().shed;
            let admitted = shed
                .rate(&caller.token_id)
                .and_then(|()| shed.acquire(request.wait_ms > 0));
            Some(admitted.inspect_err(|_| app.metrics().turned_away("acquire"))?)
        }
    };
    request.labels = caller.bind(std::mem::take(&mut request.labels))?;
    if request.force.is_some() {
        caller.needs(Area::Leases, Level::Admin)?;
        caller.unbound()?;
    }
    if caller.tenant.is_some() {
        Box::pin(registry::guard_keys(
            app.authority(),
            caller,
            request.want.keys(),
        ))
        .await?;
    }
    Ok(permit)
}

/// Bounds an acquire by its own wait and the time of any request.
async fn in_time<T>(
    app: &App,
    wait_ms: u64,
    call: impl Future<Output = Result<T, Reject>>,
) -> Result<T, Reject> {
    let waits = wait_ms > 0;
    let _waiting = waits.then(|| app.metrics().waiter());
    let limit = app.parts().limits.request_timeout() + Duration::from_millis(wait_ms);
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

/// An answer in which another tenant's holder cannot be recognised.
pub(crate) fn masked(caller: &Caller, acquired: Acquired) -> Result<Acquired, Reject> {
    Ok(match acquired {
        Acquired::Refused(refusal) => Acquired::Refused(unnamed(caller, refusal)?),
        granted @ Acquired::Granted { .. } => granted,
    })
}

pub(super) fn unnamed(
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
