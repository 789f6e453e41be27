//! How leases end: released, revoked, or with their holder. Each call runs to completion even if the
//! caller goes away: ending a lease must not stop half-way.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use lease::{
    Authority, Departure, Error, Lease, LeaseQuery, LeaseRef, Renew, Revoke, polling::NODE,
};
use leasehold_client::pages::Pages;
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

use super::{may_own, measured};
use crate::{App, Reject, auth::Caller};

async fn detached<T, F>(app: &App, call: impl FnOnce(Arc<dyn Authority>) -> F) -> Result<T, Error>
where
    T: Send + 'static,
    F: Future<Output = Result<T, Error>> + Send + 'static,
{
    ToItsEnd {
        call: Some(Box::pin(call(app.shared_authority()))),
        tasks: app.tasks().clone(),
    }
    .await
}

/// A call that continues as a separate task when its caller goes away. Until then it needs no task
/// of its own, and so no hop between two tasks.
struct ToItsEnd<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    call: Option<Pin<Box<F>>>,
    tasks: TaskTracker,
}

impl<F> Future for ToItsEnd<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        // Taken out meanwhile: a call that panicked is not polled again.
        let Some(mut call) = self.call.take() else {
            return Poll::Pending;
        };
        let poll = call.as_mut().poll(context);
        if poll.is_pending() {
            self.call = Some(call);
        }
        poll
    }
}

impl<F> Drop for ToItsEnd<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    fn drop(&mut self) {
        // Without a runtime nothing can go on.
        if let (Some(call), Ok(runtime)) = (self.call.take(), Handle::try_current()) {
            self.tasks.spawn_on(call, &runtime);
        }
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
            ..LeaseQuery::default()
        };
        let mut pages = Pages::new(app.authority(), query);
        let found = pages.first(Renew::MAX_LEASES).await?;
        let foreign = |lease: &Lease| !caller.sees(lease.labels.tenant());
        // A holder's own presence goes with it; whatever else is reserved shows an agent.
        let own = found.iter().filter(|lease| {
            !foreign(lease) && lease.holder == *departure.holder() && lease.key.kind() != NODE
        });
        may_own(caller, own.map(|lease| &lease.key))?;
        if caller.tenant.is_some() && (pages.has_more() || found.iter().any(foreign)) {
            let own = found.into_iter().filter(|lease| !foreign(lease));
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
