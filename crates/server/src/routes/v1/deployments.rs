//! Deployments: started, read, paused, resumed and rolled back.

use ::lease::registry::DEPLOYMENT;
use axum::extract::{Path, State};
use http::StatusCode;
use leasehold_api::{Deployment, DeploymentList, DeploymentRequest, paths};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::pages::{Filter, page};
use crate::{
    App, Json, JsonBody, Query, Reject,
    auth::{Auth, Caller, RunnersAdmin, RunnersRead},
    registry::deployments::{self, Order},
};

pub(super) fn router() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list, start))
        .routes(routes!(show))
        .routes(routes!(pause))
        .routes(routes!(resume))
        .routes(routes!(rollback))
}

/// The tenant, the site and the group of a deployment.
type Group = (String, String, String);

/// The last deployment of every group, by tenant, site and group.
#[utoipa::path(get, path = paths::DEPLOYMENTS, tag = "deployments", security(("bearer" = ["runners:read"])),
    params(Filter), responses((status = 200, body = DeploymentList)))]
async fn list(
    Auth(caller, _): Auth<RunnersRead>,
    State(app): State<App>,
    Query(filter): Query<Filter>,
) -> Result<Json<DeploymentList>, Reject> {
    let (query, _) = filter.query(&caller, DEPLOYMENT)?;
    let (found, next_cursor) = page(&app, query).await?;
    let mut shown = Vec::with_capacity(found.len());
    for it in &found {
        shown.push(deployments::shown(&app, it).await?);
    }
    Ok(Json(DeploymentList {
        deployments: shown,
        next_cursor,
    }))
}

/// Start moving the cameras of a group to another version.
#[utoipa::path(post, path = paths::DEPLOYMENTS, tag = "deployments", security(("bearer" = ["runners:admin"])),
    request_body = DeploymentRequest,
    responses((status = 201, body = Deployment),
        (status = 409, description = "Another deployment of this group is not over")))]
async fn start(
    Auth(caller, _): Auth<RunnersAdmin>,
    State(app): State<App>,
    JsonBody(request): JsonBody<DeploymentRequest>,
) -> Result<(StatusCode, Json<Deployment>), Reject> {
    let found = deployments::start(&app, &caller, request).await?;
    let shown = deployments::shown(&app, &found).await?;
    Ok((StatusCode::CREATED, Json(shown)))
}

/// The last deployment of a group.
#[utoipa::path(get, path = paths::DEPLOYMENT, tag = "deployments", security(("bearer" = ["runners:read"])),
    params(("tenant_id" = String, Path), ("site_id" = String, Path), ("deployment_group" = String, Path)),
    responses((status = 200, body = Deployment), (status = 404, description = "Unknown")))]
async fn show(
    Auth(caller, _): Auth<RunnersRead>,
    State(app): State<App>,
    Path((tenant, site, group)): Path<Group>,
) -> Result<Json<Deployment>, Reject> {
    let found = deployments::load(&app, &caller, &tenant, &site, &group).await?;
    deployments::shown(&app, &found).await.map(Json)
}

async fn ordered(
    app: &App,
    caller: &Caller,
    (tenant, site, group): &Group,
    order: Order,
) -> Result<Json<Deployment>, Reject> {
    let found = deployments::order(app, caller, (tenant, site, group), order).await?;
    deployments::shown(app, &found).await.map(Json)
}

/// Pause a deployment: nothing further is shifted.
#[utoipa::path(post, path = paths::DEPLOYMENT_PAUSE, tag = "deployments", security(("bearer" = ["runners:admin"])),
    params(("tenant_id" = String, Path), ("site_id" = String, Path), ("deployment_group" = String, Path)),
    responses((status = 200, body = Deployment), (status = 404, description = "Unknown"),
        (status = 412, description = "It is over")))]
async fn pause(
    Auth(caller, _): Auth<RunnersAdmin>,
    State(app): State<App>,
    Path(group): Path<Group>,
) -> Result<Json<Deployment>, Reject> {
    ordered(&app, &caller, &group, Order::Pause).await
}

/// Resume a deployment.
#[utoipa::path(post, path = paths::DEPLOYMENT_RESUME, tag = "deployments", security(("bearer" = ["runners:admin"])),
    params(("tenant_id" = String, Path), ("site_id" = String, Path), ("deployment_group" = String, Path)),
    responses((status = 200, body = Deployment), (status = 404, description = "Unknown"),
        (status = 412, description = "It is over")))]
async fn resume(
    Auth(caller, _): Auth<RunnersAdmin>,
    State(app): State<App>,
    Path(group): Path<Group>,
) -> Result<Json<Deployment>, Reject> {
    ordered(&app, &caller, &group, Order::Resume).await
}

/// Roll a deployment back: every camera returns to the previous version.
#[utoipa::path(post, path = paths::DEPLOYMENT_ROLLBACK, tag = "deployments", security(("bearer" = ["runners:admin"])),
    params(("tenant_id" = String, Path), ("site_id" = String, Path), ("deployment_group" = String, Path)),
    responses((status = 200, body = Deployment), (status = 404, description = "Unknown")))]
async fn rollback(
    Auth(caller, _): Auth<RunnersAdmin>,
    State(app): State<App>,
    Path(group): Path<Group>,
) -> Result<Json<Deployment>, Reject> {
    ordered(&app, &caller, &group, Order::RollBack).await
}
