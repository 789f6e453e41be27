//! Renewing leases: one, many, or all of a holder.

use std::sync::Arc;

use ::lease::Renewal;
use axum::extract::{Path, State};
use leasehold_api::{
    HeartbeatAnswer, HeartbeatRequest, Lease, RenewManyRequest, RenewRequest, Renewed, RenewedList,
    paths,
};
use serde_json::{Map, Value};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    App, Json, JsonBody, Reject,
    auth::{Auth, LeasesWrite},
    ops,
    registry::runners,
};

pub(super) fn router() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(renew_many))
        .routes(routes!(renew))
        .routes(routes!(heartbeat))
}

/// Renew many leases of one holder, or all of them, in one step: one answer per lease, or a brief one.
#[utoipa::path(post, path = paths::RENEW_MANY, tag = "leases", security(("bearer" = ["leases:write"])),
    request_body = RenewManyRequest, responses((status = 200, body = RenewedList)))]
async fn renew_many(
    Auth(caller, _): Auth<LeasesWrite>,
    State(app): State<App>,
    JsonBody(request): JsonBody<RenewManyRequest>,
) -> Result<Json<RenewedList>, Reject> {
    let is_brief = request.brief;
    let known_by_address = request.incarnation.is_none() && request.runner_id.is_some();
    let mut request = request.check().map_err(Reject::invalid)?;
    if known_by_address {
        // A runner that keeps no incarnation of its own means the one that is registered.
        let name = request.holder.name.as_str();
        if let Some(runner) = runners::find_in(&app, caller.tenant.as_deref(), name).await? {
            request.holder = runners::holder(&runner.value)?;
        }
    }
    if is_brief {
        let kept = ops::keep(&app, &caller, request.holder).await?;
        return Ok(Json(RenewedList::from(&kept)));
    }
    let renewed = ops::renew(&app, &caller, request).await?;
    Ok(Json(RenewedList {
        results: renewed.iter().map(Renewed::from).collect(),
        ..RenewedList::default()
    }))
}

/// Renew one lease.
#[utoipa::path(put, path = paths::RENEW, tag = "leases", security(("bearer" = ["leases:write"])),
    params(("lease_id" = String, Path)), request_body = RenewRequest,
    responses((status = 200, body = Lease), (status = 404, description = "Unknown"), (status = 410, description = "Over")))]
async fn renew(
    Auth(caller, _): Auth<LeasesWrite>,
    State(app): State<App>,
    Path(id): Path<String>,
    JsonBody(request): JsonBody<RenewRequest>,
) -> Result<Json<Lease>, Reject> {
    let lease = ops::find(&app, &caller, &id).await?;
    let renewal = request.check(&lease).map_err(Reject::invalid)?;
    let lease = ops::renew_one(&app, &lease, renewal).await?;
    Ok(Json(Lease::from(&lease)))
}

/// A heartbeat for one lease, which renews it.
#[utoipa::path(post, path = paths::HEARTBEAT, tag = "leases", security(("bearer" = ["leases:write"])),
    params(("lease_id" = String, Path)), request_body = HeartbeatRequest,
    responses((status = 200, body = HeartbeatAnswer), (status = 404, description = "Unknown"), (status = 410, description = "Over")))]
async fn heartbeat(
    Auth(caller, _): Auth<LeasesWrite>,
    State(app): State<App>,
    Path(id): Path<String>,
    JsonBody(request): JsonBody<HeartbeatRequest>,
) -> Result<Json<HeartbeatAnswer>, Reject> {
    let lease = ops::find(&app, &caller, &id).await?;
    let mut stats = request.processing_stats;
    if let Some(status) = request.camera_status {
        stats
            .get_or_insert_with(Map::new)
            .insert("camera_status".to_owned(), status);
    }
    let renewal = Renewal {
        stats: stats.map(text),
        ..Renewal::of(&lease)
    };
    let lease = ops::renew_one(&app, &lease, renewal).await?;
    let seen = lease.renewed_at.unwrap_or(lease.acquired_at);
    Ok(Json(HeartbeatAnswer {
        success: true,
        lease_expires_at: lease.expires_at.into(),
        next_heartbeat_due: seen.plus(lease.ttl.millis() / 3).into(),
    }))
}

fn text(stats: Map<String, Value>) -> Arc<str> {
    Value::Object(stats).to_string().into()
}
