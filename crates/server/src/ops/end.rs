//! How leases end: given back, taken away, or with their holder. Each call runs to its end even when the
//! caller goes away meanwhile: what ends a lease must not be forgotten half-way.

use std::{future::Future, sync::Arc};

use lease::{
    Authority, Departure, Error, Lease, LeaseQuery, LeaseRef, Renew, Revoke, polling::NODE,
};

use super::{may_own, measured};
use crate::{App, Reject, auth::Caller};

async fn detached<T, F>(app: &App, call: impl FnOnce(Arc<dyn Authority>) -> F) -> Result<T, Error>
where
    T: Send + 'static,
    F: Future<Output = Result<T, Error>> + Send + 'static,
{
    let task = app.tasks().spawn(call(app.shared_authority()));
    task.await
        .unwrap_or_else(|_| Err(Error::Unknown("the call did not finish".into())))
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
    let call = detached(
        app,
        |authority| async move { authority.release(lease).await },
    );
    let word = |&ended: &bool| if ended { "released" } else { "nothing" };
    measured(app, "release", word, call).await
}

/// Takes a lease away (L17).
pub(crate) async fn revoke(
    app: &App,
    caller: &Caller,
    request: Revoke,
) -> Result<Option<Lease>, Reject> {
    if caller.tenant.is_some() {
        let lease = app.authority().lease_by_id(request.id).await?;
        if !lease.is_some_and(|lease| caller.sees(lease.labels.tenant())) {
            return Ok(None);
        }
    }
    let call = detached(
        app,
        |authority| async move { authority.revoke(request).await },
    );
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
    let call = detached(
        app,
        |authority| async move { authority.depart(departure).await },
    );
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
        let call = detached(app, |authority| async move {
            authority.release(reference).await
        });
        if measured(app, "depart", |_| "departed", call).await? {
            released.push(lease);
        }
    }
    Ok(released)
}
