//! `put_session_with_idempotency`: one session however often the same start is asked for.

use lease::{
    Acquire, Acquired, Committed, Holder, Key, Labels, LeaseRef, TENANT, Ttl,
    session::{self, Mapping, Put, Reason, Session, State},
};
use leasehold_api::{Code, Seconds};

use super::{Shared, intents::Start};
use crate::{App, Reject, auth::Caller, problem::RETRY_SOON};

/// How often a step is repeated because somebody else was faster.
pub(super) const ATTEMPTS: usize = 32;
/// How long phase 1 holds the service's lease at most: far longer than one request takes.
const PROBE_MS: u64 = 30_000;

pub(super) fn too_busy() -> Reject {
    Reject::new(
        Code::StoreUnavailable,
        "too many others change the same session",
    )
    .retry_after(RETRY_SOON)
}

/// The session of this start, and whether it was there before.
pub(super) async fn start(
    app: &App,
    caller: &Caller,
    shared: &Shared,
    start: Start,
) -> Result<(Session, bool), Reject> {
    let tenant = caller.tenant.as_deref().map(str::to_owned);
    let idempotency_key =
        session::idempotency_key(&start.service_ref, &start.profile, start.start_ms);
    let intent = session::intent_key(tenant.as_deref(), &idempotency_key)?;
    let now = app.authority().now().await?;
    let session = Session {
        session_id: session::new_id(now, rand::random()),
        service_ref: start.service_ref,
        profile: start.profile,
        start_ms: start.start_ms,
        state: State::New,
        reason: Reason::None,
        reason_detail: None,
        outcome: None,
        stop_reason: None,
        correlation_id: start.correlation_id,
        idempotency_key,
        created_at: now,
        updated_at: now,
        worker: None,
        tuner_slot: None,
        tenant,
    };
    for _ in 0..ATTEMPTS {
        let mapping = read(app, &intent).await?;
        let mut transaction = match session::put(&session, &mapping) {
            Put::Replay(existing) => return Ok((*existing, true)),
            Put::Commit(transaction) => transaction,
        };
        transaction.acquire = Some(session_lease(&session, shared.ttl)?);
        let probe = if shared.options.api_leases {
            Some(probe(app, &session).await?)
        } else {
            None
        };
        transaction.release = probe.iter().cloned().collect();
        let committed = app.authority().commit(transaction).await;
        if let Ok(Committed::Done { .. }) = committed {
            return Ok((session, false));
        }
        // Whatever went wrong: what was taken is given back, also when the caller went away.
        if let Some(probe) = probe {
            let authority = app.shared_authority();
            app.tasks()
                .spawn(async move { authority.release(probe).await });
        }
        match committed? {
            Committed::Done { .. } | Committed::Conflict { .. } => {}
            Committed::Refused(_) => {
                return Err(Reject::new(
                    Code::InternalError,
                    "a new session's lease was refused",
                ));
            }
        }
    }
    Err(too_busy())
}

/// Where the key points now.
async fn read(app: &App, intent: &Key) -> Result<Mapping, Reject> {
    let intent = app.authority().record(intent.clone()).await?;
    let session = match &intent {
        Some(intent) => app.authority().record(session::intended(intent)?).await?,
        None => None,
    };
    Ok(Mapping { intent, session })
}

/// The lease that heartbeats keep.
fn session_lease(session: &Session, ttl: Ttl) -> Result<Acquire, Reject> {
    let holder = Holder::new(&session.session_id.to_string(), "session")?;
    let mut request = Acquire::one(session::key(session.session_id), holder, ttl);
    if let Some(tenant) = &session.tenant {
        request.labels = Labels::new([(TENANT.to_owned(), tenant.clone())].into())?;
    }
    Ok(request)
}

/// Phase 1: tries the service's lease. It is given back in the same step in which the session appears,
/// so that the worker finds it free.
async fn probe(app: &App, session: &Session) -> Result<LeaseRef, Reject> {
    let holder = Holder::new(&format!("api/{}", session.session_id), "intent")?;
    let key = Key::new("service", &session.service_ref)?;
    let request = Acquire::one(key, holder, Ttl::from_millis(PROBE_MS)?);
    match app.authority().acquire(request).await? {
        Acquired::Granted { leases, .. } => leases
            .first()
            .map(LeaseRef::from)
            .ok_or_else(|| Reject::new(Code::InternalError, "granted without a lease")),
        Acquired::Refused(refusal) => {
            let left_ms = match refusal.cause {
                lease::Cause::Held { left_ms, .. } => left_ms,
                _ => 1_000,
            };
            Err(
                Reject::new(Code::LeaseBusy, "another session has this service")
                    .retry_after(Seconds::from_millis(left_ms.max(1_000))),
            )
        }
    }
}
