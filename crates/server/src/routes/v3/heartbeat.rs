//! Heartbeats: the session's lease is extended, never shortened and never revived.

use std::sync::Arc;

use axum::{
    Extension,
    extract::{Path, State},
};
use lease::{Lease, UnixMillis, session};
use leasehold_api::sessions::{HEARTBEAT, SessionHeartbeat};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{Shared, session_key, sessions};
use crate::{
    App, Json, Reject,
    auth::{Auth, Caller, V3Read},
};

pub(super) fn router() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(heartbeat))
}

/// A session's heartbeat. A second one within half the interval changes nothing.
#[utoipa::path(post, path = HEARTBEAT, tag = "sessions", security(("bearer" = ["v3:read"])),
    params(("session_id" = String, Path)),
    responses((status = 200, body = SessionHeartbeat), (status = 404, description = "Unknown"),
        (status = 410, description = "The session is over")))]
async fn heartbeat(
    Auth(caller, _): Auth<V3Read>,
    State(app): State<App>,
    Extension(shared): Extension<Arc<Shared>>,
    Path(id): Path<String>,
) -> Result<Json<SessionHeartbeat>, Reject> {
    let lease = beat(&app, &caller, &shared, &id).await?;
    Ok(Json(SessionHeartbeat {
        session_id: lease.key.id().to_owned(),
        lease_expires_at: lease.expires_at.into(),
        acknowledged: true,
    }))
}

/// Extends the session's lease. A session that is over has no lease: its end and the lease's end are
/// one step, so the lease alone decides, and the record is read only for the reason.
pub(super) async fn beat(
    app: &App,
    caller: &Caller,
    shared: &Shared,
    id: &str,
) -> Result<Lease, Reject> {
    let key = session_key(id)?;
    let authority = app.authority();
    let (live, now) = tokio::try_join!(authority.lease(key), authority.now())?;
    let Some(lease) = live.filter(|lease| caller.sees(lease.labels.tenant())) else {
        let session = sessions::find(app, caller, id).await?;
        shared.counted.late_heartbeat();
        return Err(Reject::session_over(Some(&session)));
    };
    let Some(lease) = keep(app, shared, lease, now).await? else {
        shared.counted.late_heartbeat();
        return Err(Reject::session_over(None));
    };
    shared.counted.heartbeat();
    Ok(lease)
}

/// The lease, extended if that is due; `None` when it ended meanwhile.
async fn keep(
    app: &App,
    shared: &Shared,
    lease: Lease,
    now: UnixMillis,
) -> Result<Option<Lease>, Reject> {
    let interval_ms = shared.options.heartbeat_interval_ms;
    let Some(request) = session::heartbeat(&lease, now, interval_ms) else {
        return Ok(Some(lease));
    };
    let renewed = app.authority().renew(request).await?.pop();
    Ok(renewed.and_then(|renewed| renewed.outcome.ok()))
}
