//! The zones of a site.

use ::lease::registry::Zone;
use axum::{
    extract::{Path, State},
    response::{IntoResponse, Response},
};
use http::{HeaderMap, StatusCode, header};
use leasehold_api::{Document, Success, ZoneList, paths};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::pages::Pages;
use crate::{
    App, Json, JsonBody, Query, Reject,
    auth::{Auth, RunnersAdmin, RunnersRead},
    registry::{
        enter, items,
        store::{Condition, Found},
    },
};

pub(super) fn router() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(show, update, remove))
}

fn view(found: Found<Zone>) -> leasehold_api::Zone {
    leasehold_api::Zone {
        zone: found.value,
        created_at: Some(found.created_at.into()),
        updated_at: Some(found.updated_at.into()),
    }
}

fn answer(status: StatusCode, found: Found<Zone>) -> Response {
    let etag = [(header::ETAG, found.etag())];
    (status, etag, Json(view(found))).into_response()
}

/// The zones of a site, in the order of their numbers.
#[utoipa::path(get, path = paths::SITE_ZONES, tag = "zones", security(("bearer" = ["runners:read"])),
    params(("tenant_id" = String, Path), ("site_id" = String, Path), Pages),
    responses((status = 200, body = ZoneList)))]
async fn list(
    Auth(caller, _): Auth<RunnersRead>,
    State(app): State<App>,
    Path((tenant_id, site_id)): Path<(String, String)>,
    Query(pages): Query<Pages>,
) -> Result<Json<ZoneList>, Reject> {
    let place = enter(&caller, &tenant_id, &site_id)?;
    let (found, next_cursor) = pages.of_site(&app, &place).await?;
    Ok(Json(ZoneList {
        zones: found.into_iter().map(view).collect(),
        next_cursor,
    }))
}

/// Add a zone.
#[utoipa::path(post, path = paths::SITE_ZONES, tag = "zones", security(("bearer" = ["runners:admin"])),
    params(("tenant_id" = String, Path), ("site_id" = String, Path)), request_body = leasehold_api::ZoneDocument,
    responses((status = 201, body = leasehold_api::Zone), (status = 409, description = "A zone with this number exists")))]
async fn create(
    Auth(caller, _): Auth<RunnersAdmin>,
    State(app): State<App>,
    Path((tenant_id, site_id)): Path<(String, String)>,
    JsonBody(document): JsonBody<Document>,
) -> Result<Response, Reject> {
    let place = enter(&caller, &tenant_id, &site_id)?;
    let found = items::create(&app, &place, document).await?;
    Ok(answer(StatusCode::CREATED, found))
}

/// One zone of a site.
#[utoipa::path(get, path = paths::SITE_ZONE, tag = "zones", security(("bearer" = ["runners:read"])),
    params(("tenant_id" = String, Path), ("site_id" = String, Path), ("zone_id" = String, Path)),
    responses((status = 200, body = leasehold_api::Zone), (status = 404, description = "Unknown")))]
async fn show(
    Auth(caller, _): Auth<RunnersRead>,
    State(app): State<App>,
    Path((tenant_id, site_id, id)): Path<(String, String, String)>,
) -> Result<Response, Reject> {
    let place = enter(&caller, &tenant_id, &site_id)?;
    let found = items::load(app.authority(), &place, &id).await?;
    Ok(answer(StatusCode::OK, found))
}

/// Change the given fields. With `If-Match`, only if the version is the one that was read.
#[utoipa::path(put, path = paths::SITE_ZONE, tag = "zones", security(("bearer" = ["runners:admin"])),
    params(("tenant_id" = String, Path), ("site_id" = String, Path), ("zone_id" = String, Path),
        ("If-Match" = Option<String>, Header, description = "The ETag that was read")),
    request_body = leasehold_api::ZoneDocument,
    responses((status = 200, body = leasehold_api::Zone), (status = 404, description = "Unknown"),
        (status = 412, description = "It was changed meanwhile")))]
async fn update(
    Auth(caller, _): Auth<RunnersAdmin>,
    State(app): State<App>,
    Path((tenant_id, site_id, id)): Path<(String, String, String)>,
    headers: HeaderMap,
    JsonBody(document): JsonBody<Document>,
) -> Result<Response, Reject> {
    let place = enter(&caller, &tenant_id, &site_id)?;
    let condition = Condition::from_headers(&headers)?;
    let found = items::update(&app, &place, &id, condition, document, true).await?;
    Ok(answer(StatusCode::OK, found))
}

/// Remove a zone.
#[utoipa::path(delete, path = paths::SITE_ZONE, tag = "zones", security(("bearer" = ["runners:admin"])),
    params(("tenant_id" = String, Path), ("site_id" = String, Path), ("zone_id" = String, Path),
        ("If-Match" = Option<String>, Header, description = "The ETag that was read")),
    responses((status = 200, body = Success), (status = 404, description = "Unknown"),
        (status = 412, description = "It was changed meanwhile")))]
async fn remove(
    Auth(caller, _): Auth<RunnersAdmin>,
    State(app): State<App>,
    Path((tenant_id, site_id, id)): Path<(String, String, String)>,
    headers: HeaderMap,
) -> Result<Json<Success>, Reject> {
    let place = enter(&caller, &tenant_id, &site_id)?;
    let condition = Condition::from_headers(&headers)?;
    items::delete::<Zone>(&app, &place, &id, condition).await?;
    Ok(Json(Success { success: true }))
}
