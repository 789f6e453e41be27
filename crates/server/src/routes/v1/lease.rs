//! One lease: read, validate, release, revoke.

use ::lease::{LeaseRef, Loss, Revoke, Status, Token};
use axum::extract::{Path, State};
use leasehold_api::{Lease, RevokeRequest, Success, ValidateAnswer, ValidateRequest, paths};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    App, Json, JsonBody, Reject,
    auth::{Auth, LeasesAdmin, LeasesRead, LeasesWrite},
    ops,
};

pub(super) fn router() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(show))
        .routes(routes!(validate))
        .routes(routes!(release))
        .routes(routes!(revoke))
}

/// A lease, including one that has ended, for as long as the history keeps it.
#[utoipa::path(get, path = paths::LEASE, tag = "leases", security(("bearer" = ["leases:read"])),
    params(("lease_id" = String, Path)),
    responses((status = 200, body = Lease), (status = 404, description = "Unknown")))]
async fn show(
    Auth(caller, _): Auth<LeasesRead>,
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<Json<Lease>, Reject> {
    let lease = ops::find(&app, &caller, &id).await?;
    Ok(Json(Lease::from(&lease)))
}

/// Is the lease live, and is this its token?
#[utoipa::path(post, path = paths::VALIDATE, tag = "leases", security(("bearer" = ["leases:read"])),
    params(("lease_id" = String, Path)), request_body = ValidateRequest,
    responses((status = 200, body = ValidateAnswer), (status = 404, description = "Unknown")))]
async fn validate(
    Auth(caller, _): Auth<LeasesRead>,
    State(app): State<App>,
    Path(id): Path<String>,
    JsonBody(request): JsonBody<ValidateRequest>,
) -> Result<Json<ValidateAnswer>, Reject> {
    let asked = request.token.map(Token::new).transpose()?;
    let lease = ops::find(&app, &caller, &id).await?;
    let now = app.authority().now().await?;
    let own = asked.is_none_or(|asked| asked == lease.token);
    Ok(Json(ValidateAnswer {
        active: lease.status == Status::Active && lease.is_live(now) && own,
        token: lease.token.get(),
        status: lease.status.as_str().to_owned(),
        expires_at: Some(lease.expires_at.into()),
    }))
}

/// Release the lease. Idempotent.
#[utoipa::path(delete, path = paths::RELEASE, tag = "leases", security(("bearer" = ["leases:write"])),
    params(("lease_id" = String, Path)),
    responses((status = 200, body = Success), (status = 404, description = "Unknown")))]
async fn release(
    Auth(caller, _): Auth<LeasesWrite>,
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<Json<Success>, Reject> {
    let granted_here = id.parse().ok().and_then(|id| app.parts().recent.take(id));
    if let Some(lease) = granted_here
        && ops::release(&app, &caller, lease).await?
    {
        return Ok(Json(Success { success: true }));
    }
    let lease = ops::find(&app, &caller, &id).await?;
    ops::release(&app, &caller, LeaseRef::from(&lease)).await?;
    Ok(Json(Success { success: true }))
}

/// Revoke the lease. Its holder is notified immediately.
#[utoipa::path(post, path = paths::REVOKE, tag = "leases", security(("bearer" = ["leases:admin"])),
    params(("lease_id" = String, Path)), request_body = RevokeRequest,
    responses((status = 200, body = Lease), (status = 404, description = "Unknown"), (status = 410, description = "Over already")))]
async fn revoke(
    Auth(caller, _): Auth<LeasesAdmin>,
    State(app): State<App>,
    Path(id): Path<String>,
    JsonBody(request): JsonBody<RevokeRequest>,
) -> Result<Json<Lease>, Reject> {
    let lease = ops::find(&app, &caller, &id).await?;
    let request = Revoke {
        id: lease.id,
        reason: request.reason.into(),
    };
    if let Some(lease) = ops::revoke(&app, &caller, request).await? {
        return Ok(Json(Lease::from(&lease)));
    }
    // Already over; the same answer as the former holder gets.
    let lease = ops::find(&app, &caller, &id).await?;
    if lease.status == Status::Revoked {
        return Ok(Json(Lease::from(&lease)));
    }
    Err(Reject::lost(&Loss::from_status(lease.status)))
}
