//! `put_session_with_idempotency`: one session however often the same start is asked for.

use lease::{
    Acquire, Committed, Holder, Key, Labels, TENANT, Ttl,
    session::{self, Mapping, Put, Reason, Session, State},
};
use leasehold_api::Code;
use leasehold_client::documents::Attempts;

use super::{
    Shared,
    intents::{Accepted, Start},
    probe,
    sessions::expiry,
};
use crate::{App, Reject, auth::Caller};

/// How often a step without an answer is looked after. More would only keep the caller waiting: it may
/// repeat its request safely.
const LOOKS: usize = 2;

/// The session of this start.
pub(super) async fn start(
    app: &App,
    caller: &Caller,
    shared: &Shared,
    start: Start,
) -> Result<Accepted, Reject> {
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
        reserved: shared.options.api_leases,
    };
    let mut unanswered = 0;
    let mut attempts = Attempts::default();
    loop {
        attempts.next().await?;
        let mapping = read(app, &intent).await?;
        let mut transaction = match session::put(&session, &mapping) {
            Put::Replay(existing) => {
                return Ok(Accepted {
                    expires_at: expiry(app, &existing).await?,
                    // Our own, when the answer to an earlier attempt was lost.
                    replay: existing.session_id != session.session_id,
                    session: *existing,
                });
            }
            Put::Commit(transaction) => transaction,
        };
        transaction.acquire = Some(session_lease(&session, shared.ttl)?);
        if shared.options.api_leases {
            probe::reserve(app, &session, &mut transaction).await?;
            transaction.release.push(probe::take(app, &session).await?);
        }
        let committed = app.authority().commit(transaction).await;
        if let Ok(Committed::Done { leases, .. }) = &committed {
            // Nothing is asked any more: what was written down is answered as accepted.
            let granted = leases.first().map(|lease| lease.expires_at);
            return Ok(Accepted {
                expires_at: granted.unwrap_or(now.plus(shared.ttl.millis())),
                session,
                replay: false,
            });
        }
        // Whatever went wrong: what was taken is given back.
        if shared.options.api_leases {
            probe::give_back(app, &session).await;
        }
        match committed {
            Ok(Committed::Done { .. } | Committed::Conflict { .. }) => {}
            Ok(Committed::Refused(_)) => {
                return Err(Reject::new(
                    Code::InternalError,
                    "a new session's lease was refused",
                ));
            }
            // It may have happened: reading again shows.
            Err(lease::Error::Unknown(_)) if unanswered < LOOKS => unanswered += 1,
            Err(error) => return Err(error.into()),
        }
    }
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
