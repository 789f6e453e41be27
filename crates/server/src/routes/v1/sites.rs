//! Sites: what they demand, and the versions of what is in them.

use axum::extract::{Path, State};
use leasehold_api::{SiteSettings, SiteVersion, paths};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    App, Json, JsonBody, Reject,
    auth::{Auth, RunnersAdmin, RunnersRead},
    registry::{enter, site},
};

pub(super) fn router() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(show, set))
        .routes(routes!(version))
}

/// What a site demands.
#[utoipa::path(get, path = paths::SITE, tag = "sites", security(("bearer" = ["runners:read"])),
    params(("tenant_id" = String, Path), ("site_id" = String, Path)),
    responses((status = 200, body = SiteSettings)))]
async fn show(
    Auth(caller, _): Auth<RunnersRead>,
    State(app): State<App>,
    Path((tenant_id, site_id)): Path<(String, String)>,
) -> Result<Json<SiteSettings>, Reject> {
    let place = enter(&caller, &tenant_id, &site_id)?;
    site::settings(app.authority(), &place).await.map(Json)
}

/// Change what a site demands.
#[utoipa::path(put, path = paths::SITE, tag = "sites", security(("bearer" = ["runners:admin"])),
    params(("tenant_id" = String, Path), ("site_id" = String, Path)), request_body = SiteSettings,
    responses((status = 200, body = SiteSettings)))]
async fn set(
    Auth(caller, _): Auth<RunnersAdmin>,
    State(app): State<App>,
    Path((tenant_id, site_id)): Path<(String, String)>,
    JsonBody(settings): JsonBody<SiteSettings>,
) -> Result<Json<SiteSettings>, Reject> {
    let place = enter(&caller, &tenant_id, &site_id)?;
    site::set(&app, &place, settings).await?;
    Ok(Json(settings))
}

/// The versions of a site's configuration.
#[utoipa::path(get, path = paths::SITE_VERSION, tag = "sites", security(("bearer" = ["runners:read"])),
    params(("tenant_id" = String, Path), ("site_id" = String, Path)),
    responses((status = 200, body = SiteVersion)))]
async fn version(
    Auth(caller, _): Auth<RunnersRead>,
    State(app): State<App>,
    Path((tenant_id, site_id)): Path<(String, String)>,
) -> Result<Json<SiteVersion>, Reject> {
    let place = enter(&caller, &tenant_id, &site_id)?;
    site::version(&app, &place).await.map(Json)
}
