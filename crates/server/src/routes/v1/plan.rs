//! Who should have which camera, and why.

use axum::extract::{Path, State};
use leasehold_api::{Assignments, Explanation, Plan, paths};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::leases::OfTenant;
use crate::{
    App, Json, Query, Reject,
    auth::{Auth, RunnersRead},
    registry::{SiteId, cameras, enter, heartbeat, plan, runners, view},
};

pub(super) fn router() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(moves))
        .routes(routes!(explain))
        .routes(routes!(assignments))
}

/// Which cameras of a site would move, and why.
#[utoipa::path(get, path = paths::SITE_PLAN, tag = "sites", security(("bearer" = ["runners:read"])),
    params(("tenant_id" = String, Path), ("site_id" = String, Path)),
    responses((status = 200, body = Plan)))]
async fn moves(
    Auth(caller, _): Auth<RunnersRead>,
    State(app): State<App>,
    Path((tenant_id, site_id)): Path<(String, String)>,
) -> Result<Json<Plan>, Reject> {
    let place = enter(&caller, &tenant_id, &site_id)?;
    let site = view::load(app.authority(), &place).await?;
    Ok(Json(plan::plan(&site)))
}

/// Why a camera is where it is.
#[utoipa::path(get, path = paths::CAMERA_EXPLAIN, tag = "cameras", security(("bearer" = ["runners:read"])),
    params(("camera_uuid" = String, Path)),
    responses((status = 200, body = Explanation), (status = 404, description = "Unknown")))]
async fn explain(
    Auth(caller, _): Auth<RunnersRead>,
    State(app): State<App>,
    Path(uuid): Path<String>,
) -> Result<Json<Explanation>, Reject> {
    let camera = cameras::find(&app, &caller, &uuid).await?.value;
    let place = SiteId::new(&camera.tenant_id, &camera.site_id)?;
    let site = view::load(app.authority(), &place).await?;
    Ok(Json(plan::explain(&site, &camera.into())))
}

/// Which cameras a runner should have.
#[utoipa::path(get, path = paths::RUNNER_ASSIGNMENTS, tag = "runners", security(("bearer" = ["runners:read"])),
    params(("runner_id" = String, Path), OfTenant),
    responses((status = 200, body = Assignments), (status = 404, description = "Unknown")))]
async fn assignments(
    Auth(caller, _): Auth<RunnersRead>,
    State(app): State<App>,
    Path(id): Path<String>,
    Query(of): Query<OfTenant>,
) -> Result<Json<Assignments>, Reject> {
    let found = runners::find(&app, &caller, of.named(&id)).await?;
    let runner = &found.value;
    let held = runners::cameras_of(&app, runner).await?;
    let place = runners::place(runner);
    let now = app.authority().now().await?;
    let planned = app
        .sites()
        .planned(&app, &place, Some(found.revision), now)
        .await?;
    Ok(Json(heartbeat::assignments(&planned, runner, &held)))
}
