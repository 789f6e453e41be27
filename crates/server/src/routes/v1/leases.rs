//! Lists of leases.

use ::lease::{HolderName, Key, LeaseQuery, Renew, Status, registry::RUNNER};
use axum::{
    extract::{Path, State},
    response::{IntoResponse as _, Response},
};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use leasehold_api::{CAMERA, Lease, LeaseList, paths};
use leasehold_client::pages::Pages;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    App, Json, Query, Reject,
    auth::{Auth, Caller, LeasesRead},
    query::page_limit,
    readers,
};

pub(super) fn router() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(by_runner))
        .routes(routes!(by_camera))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Filter {
    /// `pending`, `active`, `expired`, `released` or `revoked`; without it everything live.
    status: Option<String>,
    /// Only this kind.
    kind: Option<String>,
    /// Only this id.
    id: Option<String>,
    /// Only this holder, any incarnation.
    holder: Option<String>,
    /// Only this tenant.
    tenant_id: Option<String>,
    /// At most this many: 1 to 1000, 100 when absent.
    limit: Option<usize>,
    /// Where the page before ended.
    cursor: Option<String>,
}

/// Live leases ordered by key, or those that match.
#[utoipa::path(get, path = paths::LEASES, tag = "leases", security(("bearer" = ["leases:read"])),
    params(Filter), responses((status = 200, body = LeaseList)))]
async fn list(
    Auth(caller, _): Auth<LeasesRead>,
    State(app): State<App>,
    Query(filter): Query<Filter>,
) -> Result<Response, Reject> {
    if let Some(kind) = &filter.kind {
        ::lease::check_kind(kind)?;
    }
    let status = match filter.status.as_deref() {
        None => None,
        Some(word) => Some(Status::parse(word).ok_or_else(|| {
            Reject::field(
                "status",
                "one of pending, active, expired, released, revoked",
            )
        })?),
    };
    let query = LeaseQuery {
        kind: filter.kind,
        id: filter.id,
        holder: filter.holder.map(HolderName::new).transpose()?,
        status,
        tenant: tenant(&caller, filter.tenant_id)?,
        after: filter.cursor.as_deref().map(from_cursor).transpose()?,
        limit: page_limit(filter.limit)?,
    };
    readers::run(async move { Ok(Json(page(&app, query).await?).into_response()) }).await
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct OfTenant {
    /// Whose, where several tenants have one of this name.
    pub tenant_id: Option<String>,
}

/// The live leases of a runner.
#[utoipa::path(get, path = paths::BY_RUNNER, tag = "leases", security(("bearer" = ["leases:read"])),
    params(("runner_id" = String, Path), OfTenant), responses((status = 200, body = Vec<Lease>)))]
async fn by_runner(
    Auth(caller, _): Auth<LeasesRead>,
    State(app): State<App>,
    Path(runner): Path<String>,
    Query(of): Query<OfTenant>,
) -> Result<Json<Vec<Lease>>, Reject> {
    let wrong = |invalid: ::lease::Invalid| Reject::field("runner_id", invalid.expected);
    let query = LeaseQuery {
        holder: Some(HolderName::new(runner).map_err(wrong)?),
        status: Some(Status::Active),
        tenant: tenant(&caller, of.tenant_id)?,
        ..LeaseQuery::default()
    };
    // That it is there at all is a lease too, but none of its work.
    let work = |lease: ::lease::Lease| (lease.key.kind() != RUNNER).then(|| Lease::from(&lease));
    // A runner has as many leases as one renewal may name, at most.
    let mut pages = Pages::new(app.authority(), query);
    Ok(Json(pages.select(Renew::MAX_LEASES, work).await?))
}

/// The live lease of a camera, or null.
#[utoipa::path(get, path = paths::BY_CAMERA, tag = "leases", security(("bearer" = ["leases:read"])),
    params(("camera_uuid" = String, Path)), responses((status = 200, body = Option<Lease>)))]
async fn by_camera(
    Auth(caller, _): Auth<LeasesRead>,
    State(app): State<App>,
    Path(camera): Path<String>,
) -> Result<Json<Option<Lease>>, Reject> {
    let key = Key::new(CAMERA, &camera)
        .map_err(|invalid| Reject::field("camera_uuid", invalid.expected))?;
    let lease = app.authority().lease(key).await?;
    let lease = lease.filter(|lease| caller.sees(lease.labels.tenant()));
    Ok(Json(lease.as_ref().map(Lease::from)))
}

/// The tenant a list is cut down to: the caller's own, or the one it asked for.
pub(super) fn tenant(caller: &Caller, asked: Option<String>) -> Result<Option<String>, Reject> {
    caller.tenant_of(asked)
}

async fn page(app: &App, query: LeaseQuery) -> Result<LeaseList, Reject> {
    let page = app.authority().leases(query).await?;
    Ok(LeaseList {
        next_cursor: page
            .items
            .last()
            .filter(|_| page.more)
            .map(|lease| to_cursor(&lease.key)),
        leases: page.items.iter().map(Lease::from).collect(),
    })
}

/// A cursor is opaque to its reader: where the page ended.
pub(super) fn to_cursor(key: &Key) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(key.as_str())
}

pub(super) fn from_cursor(cursor: &str) -> Result<Key, Reject> {
    BASE64_URL_SAFE_NO_PAD
        .decode(cursor)
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| Reject::field("cursor", "the next_cursor of the page before"))
}
