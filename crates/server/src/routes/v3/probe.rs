//! Phase 1: the API itself tries the service's lease, for the length of one request. It is given back
//! in the same step in which the session appears, so that the worker finds it free; in that step the
//! service is reserved for the session, so that no other one is accepted before a worker has claimed it.

use lease::{
    Acquire, Acquired, Cause, Holder, Key, LeaseRef, Transaction, Ttl,
    session::{self, Session},
};
use leasehold_api::{Code, Seconds};
use leasehold_clock::{Backoff, System};

use super::start;
use crate::{App, Reject};

/// How long the service's lease is held at most: far longer than one request takes.
const PROBE_MS: u64 = 30_000;
/// How often giving it back is tried; after that it ends by itself.
const ATTEMPTS: u32 = 8;
/// The first and the longest pause between two attempts, in ms.
const PAUSE_MS: (u64, u64) = (50, 6_400);

fn holder(session: &Session) -> Result<Holder, Reject> {
    Ok(Holder::new(
        &format!("api/{}", session.session_id),
        "intent",
    )?)
}

fn key(session: &Session) -> Result<Key, Reject> {
    Ok(session::service_key(&session.service_ref)?)
}

fn busy(left_ms: u64) -> Reject {
    Reject::new(Code::LeaseBusy, "another session has this service")
        .retry_after(Seconds::from_millis(left_ms.max(1_000)))
}

/// Adds the service's reservation to the step in which the session appears, unless a session that is
/// under way has it.
pub(super) async fn reserve(
    app: &App,
    session: &Session,
    transaction: &mut Transaction,
) -> Result<(), Reject> {
    let service = start::read(app, &key(session)?).await?;
    let Err(reserved) = session::reserve(session, &service, transaction) else {
        return Ok(());
    };
    let now = app.authority().now().await?;
    let lease = app.authority().lease(reserved.by).await?;
    Err(busy(lease.map_or(0, |it| it.expires_at.since(now))))
}

/// Tries the service's lease.
pub(super) async fn take(app: &App, session: &Session) -> Result<LeaseRef, Reject> {
    let request = Acquire::one(key(session)?, holder(session)?, Ttl::from_millis(PROBE_MS)?);
    match app.authority().acquire(request).await {
        Ok(Acquired::Granted { leases, .. }) => leases
            .first()
            .map(LeaseRef::from)
            .ok_or_else(|| Reject::new(Code::InternalError, "granted without a lease")),
        Ok(Acquired::Refused(refusal)) => {
            let left_ms = match refusal.cause {
                Cause::Held { left_ms, .. } => left_ms,
                _ => 1_000,
            };
            Err(busy(left_ms))
        }
        Err(error) => {
            if !error.has_no_side_effects() {
                give_back(app, session).await;
            }
            Err(error.into())
        }
    }
}

/// Gives back what this request has, or may have. The first attempt is awaited, so that a repeated step
/// does not meet it; when the store is out of reach the others go on behind the answer.
pub(super) async fn give_back(app: &App, session: &Session) {
    let (Ok(key), Ok(holder)) = (key(session), holder(session)) else {
        return;
    };
    if release(app, &key, &holder).await.is_ok() {
        return;
    }
    let app = app.clone();
    app.tasks().clone().spawn(async move {
        let mut backoff = Backoff::new(PAUSE_MS.0, PAUSE_MS.1);
        for _ in 1..ATTEMPTS {
            tokio::select! {
                () = backoff.pause(&System) => {}
                () = app.closing().cancelled() => {}
            }
            match release(&app, &key, &holder).await {
                Ok(()) => return,
                Err(error) => tracing::info!(%key, %error, "cannot release a service yet"),
            }
            if app.closing().is_cancelled() {
                return;
            }
        }
    });
}

async fn release(app: &App, key: &Key, holder: &Holder) -> Result<(), lease::Error> {
    match app.authority().lease(key.clone()).await? {
        Some(lease) if lease.holder == *holder => {
            app.authority().release(LeaseRef::from(&lease)).await?;
            Ok(())
        }
        _ => Ok(()),
    }
}
