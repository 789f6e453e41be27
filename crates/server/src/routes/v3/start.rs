//! `put_session_with_idempotency`: one session however often the same start is asked for.

use lease::{
    Committed, Key,
    session::{self, Mapping, Put, Request, Session},
};
use leasehold_api::Code;
use leasehold_client::documents::Attempts;

use super::{Shared, intents::Accepted, probe, sessions::expiry};
use crate::{App, Reject};

/// How often a step without an answer is looked after. More would only keep the caller waiting: it may
/// repeat its request safely.
const LOOKS: usize = 2;

/// The session of this start.
pub(super) async fn start(
    app: &App,
    shared: &Shared,
    request: Request,
) -> Result<Accepted, Reject> {
    let now = app.authority().now().await?;
    let id = session::new_id(now, rand::random());
    let session = Session::new(id, request, shared.options.api_leases, now);
    let intent = session::intent_key(session.tenant.as_deref(), &session.idempotency_key)?;
    let mut unanswered = 0;
    let mut attempts = Attempts::default();
    loop {
        attempts.next().await?;
        let mapping = read(app, &intent).await?;
        let mut transaction = match session::start(&session, &mapping, shared.ttl)? {
            Put::Replay(existing) => {
                return Ok(Accepted {
                    expires_at: expiry(app, &existing).await?,
                    // Our own, when the answer to an earlier attempt was lost.
                    replay: existing.session_id != session.session_id,
                    session: *existing,
                });
            }
            Put::Commit(transaction) => *transaction,
        };
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

/// Where a key points now.
pub(super) async fn read(app: &App, pointer: &Key) -> Result<Mapping, Reject> {
    let pointer = app.authority().record(pointer.clone()).await?;
    let session = match &pointer {
        Some(pointer) => app.authority().record(session::intended(pointer)?).await?,
        None => None,
    };
    Ok(Mapping { pointer, session })
}
