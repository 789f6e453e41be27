//! Runners: registration, heartbeats, orders and removal.

use ::lease::registry::{RUNNER, RunnerStatus};
use axum::extract::{Path, State};
use leasehold_api::{
    RegisterRequest, Registered, RunnerHeartbeatAnswer, RunnerHeartbeatRequest, RunnerList,
    RunnerRemoved, paths,
};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    leases::OfTenant,
    pages::{Filter, page},
};
use crate::{
    App, Json, JsonBody, Query, Reject,
    auth::{Auth, Caller, RunnersAdmin, RunnersRead, RunnersWrite},
    registry::{heartbeat, runners},
};

pub(super) fn router() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(register))
        .routes(routes!(list))
        .routes(routes!(show, remove))
        .routes(routes!(beat))
        .routes(routes!(cordon))
        .routes(routes!(uncordon))
        .routes(routes!(drain))
}

/// Register a runner, for the first time or again.
///
/// A new incarnation is let in once the one before is no longer present; what that one had is released.
#[utoipa::path(post, path = paths::RUNNER_REGISTER, tag = "runners", security(("bearer" = ["runners:write"])),
    request_body = RegisterRequest,
    responses((status = 200, body = Registered),
        (status = 409, description = "Another live incarnation has this id")))]
async fn register(
    Auth(caller, _): Auth<RunnersWrite>,
    State(app): State<App>,
    JsonBody(request): JsonBody<RegisterRequest>,
) -> Result<Json<Registered>, Reject> {
    let registered = runners::register(&app, &caller, request).await?;
    Ok(Json(Registered {
        runner: runners::shown(&app, &registered.runner).await?,
        created: registered.fresh,
    }))
}

impl OfTenant {
    /// The runner that is meant.
    pub(super) fn named<'a>(&'a self, id: &'a str) -> runners::Named<'a> {
        runners::Named {
            id,
            tenant: self.tenant_id.as_deref(),
        }
    }
}

/// Runners, by tenant, site and name.
#[utoipa::path(get, path = paths::RUNNERS, tag = "runners", security(("bearer" = ["runners:read"])),
    params(Filter), responses((status = 200, body = RunnerList)))]
async fn list(
    Auth(caller, _): Auth<RunnersRead>,
    State(app): State<App>,
    Query(filter): Query<Filter>,
) -> Result<Json<RunnerList>, Reject> {
    let (query, tenant_id) = filter.query(&caller, RUNNER)?;
    let (found, next_cursor) = page(&app, query).await?;
    Ok(Json(RunnerList {
        runners: runners::shown_all(&app, &found, tenant_id.as_deref()).await?,
        next_cursor,
    }))
}

/// One runner.
#[utoipa::path(get, path = paths::RUNNER, tag = "runners", security(("bearer" = ["runners:read"])),
    params(("runner_id" = String, Path), OfTenant),
    responses((status = 200, body = leasehold_api::Runner), (status = 404, description = "Unknown")))]
async fn show(
    Auth(caller, _): Auth<RunnersRead>,
    State(app): State<App>,
    Path(id): Path<String>,
    Query(of): Query<OfTenant>,
) -> Result<Json<leasehold_api::Runner>, Reject> {
    let found = runners::find(&app, &caller, of.named(&id)).await?;
    runners::shown(&app, &found).await.map(Json)
}

/// Remove a runner for good; what it has is free immediately.
#[utoipa::path(delete, path = paths::RUNNER, tag = "runners", security(("bearer" = ["runners:write"])),
    params(("runner_id" = String, Path), OfTenant),
    responses((status = 200, body = RunnerRemoved), (status = 404, description = "Unknown")))]
async fn remove(
    Auth(caller, _): Auth<RunnersWrite>,
    State(app): State<App>,
    Path(id): Path<String>,
    Query(of): Query<OfTenant>,
) -> Result<Json<RunnerRemoved>, Reject> {
    let leases_released = runners::delete(&app, &caller, of.named(&id)).await?;
    Ok(Json(RunnerRemoved {
        success: true,
        leases_released,
    }))
}

/// A runner's heartbeat: renews everything it has, and returns everything it should know.
#[utoipa::path(put, path = paths::RUNNER_HEARTBEAT, tag = "runners", security(("bearer" = ["runners:write"])),
    params(("runner_id" = String, Path), OfTenant), request_body = RunnerHeartbeatRequest,
    responses((status = 200, body = RunnerHeartbeatAnswer), (status = 404, description = "Unknown"),
        (status = 409, description = "Another incarnation is registered")))]
async fn beat(
    Auth(caller, _): Auth<RunnersWrite>,
    State(app): State<App>,
    Path(id): Path<String>,
    Query(of): Query<OfTenant>,
    JsonBody(request): JsonBody<RunnerHeartbeatRequest>,
) -> Result<Json<RunnerHeartbeatAnswer>, Reject> {
    heartbeat::heartbeat(&app, &caller, of.named(&id), request)
        .await
        .map(Json)
}

async fn ordered(
    app: &App,
    caller: &Caller,
    named: runners::Named<'_>,
    status: RunnerStatus,
    drains_hard: bool,
) -> Result<Json<leasehold_api::Runner>, Reject> {
    let found = runners::order(app, caller, named, status, drains_hard).await?;
    runners::shown(app, &found).await.map(Json)
}

/// Cordon a runner: it keeps what it has and gets nothing new.
#[utoipa::path(post, path = paths::RUNNER_CORDON, tag = "runners", security(("bearer" = ["runners:admin"])),
    params(("runner_id" = String, Path), OfTenant),
    responses((status = 200, body = leasehold_api::Runner), (status = 404, description = "Unknown")))]
async fn cordon(
    Auth(caller, _): Auth<RunnersAdmin>,
    State(app): State<App>,
    Path(id): Path<String>,
    Query(of): Query<OfTenant>,
) -> Result<Json<leasehold_api::Runner>, Reject> {
    ordered(&app, &caller, of.named(&id), RunnerStatus::Cordoned, false).await
}

/// Uncordon a runner: it takes work again.
#[utoipa::path(post, path = paths::RUNNER_UNCORDON, tag = "runners", security(("bearer" = ["runners:admin"])),
    params(("runner_id" = String, Path), OfTenant),
    responses((status = 200, body = leasehold_api::Runner), (status = 404, description = "Unknown")))]
async fn uncordon(
    Auth(caller, _): Auth<RunnersAdmin>,
    State(app): State<App>,
    Path(id): Path<String>,
    Query(of): Query<OfTenant>,
) -> Result<Json<leasehold_api::Runner>, Reject> {
    ordered(&app, &caller, of.named(&id), RunnerStatus::Active, false).await
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct HowToDrain {
    /// Whose, where several tenants have one of this name.
    tenant_id: Option<String>,
    /// Give everything up immediately, instead of handing it over in batches.
    #[serde(default)]
    hard: bool,
}

/// Drain a runner: it gives everything up and gets nothing new.
#[utoipa::path(post, path = paths::RUNNER_DRAIN, tag = "runners", security(("bearer" = ["runners:admin"])),
    params(("runner_id" = String, Path), HowToDrain),
    responses((status = 200, body = leasehold_api::Runner), (status = 404, description = "Unknown")))]
async fn drain(
    Auth(caller, _): Auth<RunnersAdmin>,
    State(app): State<App>,
    Path(id): Path<String>,
    Query(how): Query<HowToDrain>,
) -> Result<Json<leasehold_api::Runner>, Reject> {
    let named = runners::Named {
        id: &id,
        tenant: how.tenant_id.as_deref(),
    };
    ordered(&app, &caller, named, RunnerStatus::Draining, how.hard).await
}
