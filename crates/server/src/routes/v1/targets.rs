//! What is polled: the documents of the targets, in whichever store.

use ::lease::{
    Key, Record, RecordQuery,
    polling::{self, TARGET},
};
use axum::{
    extract::{Path, State},
    response::{IntoResponse, Response},
};
use http::StatusCode;
use leasehold_api::{Code, Document, Success, TargetDocument, TargetList, paths};
use leasehold_client::documents::{self, Edit};
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{leases::to_cursor, pages::after};
use crate::{
    App, Json, JsonBody, Query, Reject,
    auth::{Auth, Caller, RunnersAdmin, RunnersRead},
    query::page_limit,
    registry::store,
};

pub(super) fn router() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(show, change, remove))
}

/// Targets belong to no tenant.
fn unbound(caller: &Caller) -> Result<(), Reject> {
    match caller.tenant {
        None => Ok(()),
        Some(_) => Err(Reject::new(
            Code::AuthorizationFailed,
            "targets belong to no tenant, and this credential is bound to one",
        )),
    }
}

fn unknown() -> Reject {
    Reject::new(Code::NotFound, "no such target")
}

fn key(id: &str) -> Result<Key, Reject> {
    polling::target_key(id).map_err(|_| unknown())
}

/// A record's document; what a foreign program wrote may be anything.
fn document(record: &Record) -> Option<Map<String, Value>> {
    let mut document: Map<String, Value> = serde_json::from_str(&record.value).ok()?;
    document.insert("id".to_owned(), record.key.id().into());
    Some(document)
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Wanted {
    /// Only ids that begin with this.
    prefix: Option<String>,
    /// At most this many: 1 to 1000, 100 when absent.
    limit: Option<usize>,
    /// Where the page before ended.
    cursor: Option<String>,
}

/// The polling targets, by id.
#[utoipa::path(get, path = paths::TARGETS, tag = "targets", security(("bearer" = ["runners:read"])),
    params(Wanted), responses((status = 200, description = "A page of targets", body = TargetList)))]
async fn list(
    Auth(caller, _): Auth<RunnersRead>,
    State(app): State<App>,
    Query(wanted): Query<Wanted>,
) -> Result<Json<TargetList>, Reject> {
    unbound(&caller)?;
    let query = RecordQuery {
        kind: TARGET.to_owned(),
        prefix: wanted.prefix.unwrap_or_default(),
        after: after(wanted.cursor.as_deref())?,
        limit: page_limit(wanted.limit)?,
    };
    let page = app.authority().records(query).await?;
    let last = page.items.last().filter(|_| page.more);
    Ok(Json(TargetList {
        next_cursor: last.map(|record| to_cursor(&record.key)),
        targets: page.items.iter().filter_map(document).collect(),
    }))
}

/// Add a target.
#[utoipa::path(post, path = paths::TARGETS, tag = "targets", security(("bearer" = ["runners:admin"])),
    request_body = TargetDocument,
    responses((status = 201, description = "Added", body = TargetDocument),
        (status = 409, description = "A target with this id exists")))]
async fn create(
    Auth(caller, _): Auth<RunnersAdmin>,
    State(app): State<App>,
    JsonBody(Document(fields)): JsonBody<Document>,
) -> Result<Response, Reject> {
    unbound(&caller)?;
    let id = fields.get("id").and_then(Value::as_str);
    let id = id
        .ok_or_else(|| Reject::field("id", "the target's id"))?
        .to_owned();
    let key = polling::target_key(&id)?;
    let text = polling::target_document(&id, fields)?;
    documents::change(app.authority(), &key, |found| match found {
        None => Ok(Edit::Put(text.as_str().into(), "created".into(), ())),
        Some(_) => Err(Reject::new(
            Code::AlreadyExists,
            "a target with this id exists",
        )),
    })
    .await?;
    Ok((StatusCode::CREATED, Json(read(&app, key).await?)).into_response())
}

/// One target.
#[utoipa::path(get, path = paths::TARGET, tag = "targets", security(("bearer" = ["runners:read"])),
    params(("target_id" = String, Path)),
    responses((status = 200, description = "The target", body = TargetDocument), (status = 404, description = "Unknown")))]
async fn show(
    Auth(caller, _): Auth<RunnersRead>,
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<Json<Map<String, Value>>, Reject> {
    unbound(&caller)?;
    Ok(Json(read(&app, key(&id)?).await?))
}

/// Change the given fields; `null` removes one. A target that does not exist is added.
#[utoipa::path(put, path = paths::TARGET, tag = "targets", security(("bearer" = ["runners:admin"])),
    params(("target_id" = String, Path)), request_body = TargetDocument,
    responses((status = 200, description = "The target as it is now", body = TargetDocument),
        (status = 404, description = "Nothing can have this id")))]
async fn change(
    Auth(caller, _): Auth<RunnersAdmin>,
    State(app): State<App>,
    Path(id): Path<String>,
    JsonBody(Document(change)): JsonBody<Document>,
) -> Result<Json<Map<String, Value>>, Reject> {
    unbound(&caller)?;
    let key = key(&id)?;
    documents::change(app.authority(), &key, |found| {
        let mut fields = found.as_ref().and_then(document).unwrap_or_default();
        store::merge(&mut fields, change.clone());
        let text = polling::target_document(&id, fields)?;
        Ok::<_, Reject>(Edit::Put(text.into(), "changed".into(), ()))
    })
    .await?;
    Ok(Json(read(&app, key).await?))
}

/// Remove a target. Its poller stops.
#[utoipa::path(delete, path = paths::TARGET, tag = "targets", security(("bearer" = ["runners:admin"])),
    params(("target_id" = String, Path)),
    responses((status = 200, description = "Removed", body = Success), (status = 404, description = "Unknown")))]
async fn remove(
    Auth(caller, _): Auth<RunnersAdmin>,
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<Json<Success>, Reject> {
    unbound(&caller)?;
    let key = key(&id)?;
    documents::change(app.authority(), &key, |found| match found {
        Some(_) => Ok(Edit::Remove("removed".into(), ())),
        None => Err(unknown()),
    })
    .await?;
    Ok(Json(Success { success: true }))
}

async fn read(app: &App, key: Key) -> Result<Map<String, Value>, Reject> {
    let record = app.authority().record(key).await?.ok_or_else(unknown)?;
    document(&record).ok_or_else(|| {
        Reject::new(
            Code::InternalError,
            "the target's document is no JSON object",
        )
    })
}
