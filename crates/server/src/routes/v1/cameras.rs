//! The cameras of a site.

use ::lease::{
    UnixMillis,
    registry::{CAMERA, Camera, CameraStatus, Trouble},
};
use axum::{
    extract::{Path, State},
    response::{IntoResponse, Response},
};
use http::{HeaderMap, StatusCode, header};
use leasehold_api::{AvailableCameras, CameraList, Document, Success, paths};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::pages::{self, Filter, Pages};
use crate::{
    App, Json, JsonBody, Query, Reject,
    auth::{Area, Auth, Caller, Level, RunnersAdmin, RunnersRead},
    registry::{
        SiteId, cameras, enter, items, runners,
        store::{Condition, Found},
        trouble,
    },
};

pub(super) fn router() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(show, update, remove))
        .routes(routes!(by_name, update_by_name))
        .routes(routes!(available))
}

/// What this caller may see of a camera: the credentials in its address only with their own scope.
pub(super) fn view(
    caller: &Caller,
    found: Found<Camera>,
    trouble: Option<&Trouble>,
    now: UnixMillis,
) -> leasehold_api::Camera {
    let config_version = found.value.config_version();
    let zone_version = found.value.zone_version();
    let parked = trouble
        .filter(|it| found.value.enabled && it.parks(&config_version, now))
        .and_then(trouble::shown);
    let camera = if caller.may(Area::Credentials, Level::Read) {
        found.value
    } else {
        found.value.without_credentials()
    };
    leasehold_api::Camera {
        camera,
        config_version,
        zone_version,
        created_at: Some(found.created_at.into()),
        updated_at: Some(found.updated_at.into()),
        parked,
    }
}

async fn answer(
    app: &App,
    caller: &Caller,
    status: StatusCode,
    found: Found<Camera>,
) -> Result<Response, Reject> {
    let etag = [(header::ETAG, found.etag())];
    let trouble = trouble::of(app.authority(), &found.value).await?;
    let trouble = trouble.map(|found| found.value);
    let shown = view(
        caller,
        found,
        trouble.as_ref(),
        app.authority().now().await?,
    );
    Ok((status, etag, Json(shown)).into_response())
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Listed {
    /// Only those with this status: `online`, `offline`, `error` or `maintenance`.
    status: Option<String>,
    /// At most this many: 1 to 1000, 100 when absent.
    limit: Option<usize>,
    /// Where the page before ended.
    cursor: Option<String>,
    /// Leave out this many at the beginning: at most 100000. A cursor costs less.
    offset: Option<usize>,
}

/// The cameras of a site, in the order of their names.
#[utoipa::path(get, path = paths::SITE_CAMERAS, tag = "cameras", security(("bearer" = ["runners:read"])),
    params(("tenant_id" = String, Path), ("site_id" = String, Path), Listed),
    responses((status = 200, body = CameraList)))]
async fn list(
    Auth(caller, _): Auth<RunnersRead>,
    State(app): State<App>,
    Path((tenant_id, site_id)): Path<(String, String)>,
    Query(listed): Query<Listed>,
) -> Result<Json<CameraList>, Reject> {
    let place = enter(&caller, &tenant_id, &site_id)?;
    let status = match listed.status.as_deref() {
        None => None,
        Some(word) => Some(CameraStatus::parse(word).ok_or_else(|| {
            Reject::field("status", "one of online, offline, error, maintenance")
        })?),
    };
    let pages = Pages {
        limit: listed.limit,
        cursor: listed.cursor,
        offset: listed.offset,
    };
    let wanted = |it: &Camera| status.is_none_or(|status| it.status == status);
    let (found, next_cursor) = pages.of_site_where(&app, &place, wanted).await?;
    let troubles = trouble::under(app.authority(), place.prefix()).await?;
    let now = app.authority().now().await?;
    let shown = |it: Found<Camera>| {
        let trouble = troubles.get(&it.value.camera_uuid);
        view(&caller, it, trouble, now)
    };
    Ok(Json(CameraList {
        cameras: found.into_iter().map(shown).collect(),
        next_cursor,
    }))
}

/// Add a camera.
#[utoipa::path(post, path = paths::SITE_CAMERAS, tag = "cameras", security(("bearer" = ["runners:admin"])),
    params(("tenant_id" = String, Path), ("site_id" = String, Path)), request_body = leasehold_api::CameraDocument,
    responses((status = 201, body = leasehold_api::Camera), (status = 409, description = "A camera with this name exists")))]
async fn create(
    Auth(caller, _): Auth<RunnersAdmin>,
    State(app): State<App>,
    Path((tenant_id, site_id)): Path<(String, String)>,
    JsonBody(document): JsonBody<Document>,
) -> Result<Response, Reject> {
    let place = enter(&caller, &tenant_id, &site_id)?;
    let found = items::create(&app, &place, document).await?;
    answer(&app, &caller, StatusCode::CREATED, found).await
}

/// One camera of a site.
#[utoipa::path(get, path = paths::SITE_CAMERA, tag = "cameras", security(("bearer" = ["runners:read"])),
    params(("tenant_id" = String, Path), ("site_id" = String, Path), ("camera_uuid" = String, Path)),
    responses((status = 200, body = leasehold_api::Camera), (status = 404, description = "Unknown")))]
async fn show(
    Auth(caller, _): Auth<RunnersRead>,
    State(app): State<App>,
    Path((tenant_id, site_id, uuid)): Path<(String, String, String)>,
) -> Result<Response, Reject> {
    let place = enter(&caller, &tenant_id, &site_id)?;
    let found = items::load(app.authority(), &place, &uuid).await?;
    answer(&app, &caller, StatusCode::OK, found).await
}

/// Change the given fields. With `If-Match`, only if the version is the one that was read.
#[utoipa::path(put, path = paths::SITE_CAMERA, tag = "cameras", security(("bearer" = ["runners:admin"])),
    params(("tenant_id" = String, Path), ("site_id" = String, Path), ("camera_uuid" = String, Path),
        ("If-Match" = Option<String>, Header, description = "The ETag that was read")),
    request_body = leasehold_api::CameraDocument,
    responses((status = 200, body = leasehold_api::Camera), (status = 404, description = "Unknown"),
        (status = 412, description = "It was changed meanwhile")))]
async fn update(
    Auth(caller, _): Auth<RunnersAdmin>,
    State(app): State<App>,
    Path((tenant_id, site_id, uuid)): Path<(String, String, String)>,
    headers: HeaderMap,
    JsonBody(document): JsonBody<Document>,
) -> Result<Response, Reject> {
    let place = enter(&caller, &tenant_id, &site_id)?;
    change(&app, &caller, &place, &uuid, &headers, document).await
}

async fn change(
    app: &App,
    caller: &Caller,
    place: &SiteId,
    uuid: &str,
    headers: &HeaderMap,
    document: Document,
) -> Result<Response, Reject> {
    let condition = Condition::from_headers(headers)?;
    let sees_secrets = caller.may(Area::Credentials, Level::Read);
    let found = items::update(app, place, uuid, condition, document, sees_secrets).await?;
    answer(app, caller, StatusCode::OK, found).await
}

/// Remove a camera. Its holder loses it.
#[utoipa::path(delete, path = paths::SITE_CAMERA, tag = "cameras", security(("bearer" = ["runners:admin"])),
    params(("tenant_id" = String, Path), ("site_id" = String, Path), ("camera_uuid" = String, Path),
        ("If-Match" = Option<String>, Header, description = "The ETag that was read")),
    responses((status = 200, body = Success), (status = 404, description = "Unknown"),
        (status = 412, description = "It was changed meanwhile")))]
async fn remove(
    Auth(caller, _): Auth<RunnersAdmin>,
    State(app): State<App>,
    Path((tenant_id, site_id, uuid)): Path<(String, String, String)>,
    headers: HeaderMap,
) -> Result<Json<Success>, Reject> {
    let place = enter(&caller, &tenant_id, &site_id)?;
    let condition = Condition::from_headers(&headers)?;
    items::delete::<Camera>(&app, &place, &uuid, condition).await?;
    trouble::forget(&app, &place, &uuid).await?;
    app.parts().pictures.forget(&uuid);
    Ok(Json(Success { success: true }))
}

/// A camera by its name alone.
#[utoipa::path(get, path = paths::CAMERA, tag = "cameras", security(("bearer" = ["runners:read"])),
    params(("camera_uuid" = String, Path)),
    responses((status = 200, body = leasehold_api::Camera), (status = 404, description = "Unknown")))]
async fn by_name(
    Auth(caller, _): Auth<RunnersRead>,
    State(app): State<App>,
    Path(uuid): Path<String>,
) -> Result<Response, Reject> {
    let found = cameras::find(&app, &caller, &uuid).await?;
    answer(&app, &caller, StatusCode::OK, found).await
}

/// Change the fields of a camera that are named, by its name alone.
#[utoipa::path(put, path = paths::CAMERA, tag = "cameras", security(("bearer" = ["runners:admin"])),
    params(("camera_uuid" = String, Path),
        ("If-Match" = Option<String>, Header, description = "The ETag that was read")),
    request_body = leasehold_api::CameraDocument,
    responses((status = 200, body = leasehold_api::Camera), (status = 404, description = "Unknown"),
        (status = 412, description = "It was changed meanwhile")))]
async fn update_by_name(
    Auth(caller, _): Auth<RunnersAdmin>,
    State(app): State<App>,
    Path(uuid): Path<String>,
    headers: HeaderMap,
    JsonBody(document): JsonBody<Document>,
) -> Result<Response, Reject> {
    let found = cameras::find(&app, &caller, &uuid).await?;
    let place = SiteId::new(&found.value.tenant_id, &found.value.site_id)?;
    change(&app, &caller, &place, &uuid, &headers, document).await
}

/// Cameras that nobody holds and somebody could: switched on, and not parked.
#[utoipa::path(get, path = paths::CAMERAS_AVAILABLE, tag = "cameras", security(("bearer" = ["runners:read"])),
    params(Filter), responses((status = 200, body = AvailableCameras)))]
async fn available(
    Auth(caller, _): Auth<RunnersRead>,
    State(app): State<App>,
    Query(filter): Query<Filter>,
) -> Result<Json<AvailableCameras>, Reject> {
    let (query, tenant_id) = filter.query(&caller, CAMERA)?;
    let held: std::collections::HashSet<String> =
        runners::live(app.authority(), CAMERA, tenant_id.as_deref(), None)
            .await?
            .into_iter()
            .map(|lease| lease.key.id().to_owned())
            .collect();
    let troubles = trouble::under(app.authority(), query.prefix.clone()).await?;
    let now = app.authority().now().await?;
    let is_open = |camera: &Camera| {
        let parked = || {
            troubles
                .get(&camera.camera_uuid)
                .is_some_and(|it| it.parks(&camera.config_version(), now))
        };
        camera.enabled && !held.contains(&camera.camera_uuid) && !parked()
    };
    let (found, next_cursor) = pages::filtered(&app, query, 0, is_open).await?;
    let cameras = found.into_iter().map(|it| it.value.camera_uuid);
    Ok(Json(AvailableCameras {
        cameras: cameras.collect(),
        next_cursor,
    }))
}
