//! Presence of holders. Each is a lease of the kind `node`.

use std::sync::Arc;

use ::lease::{Acquired, Departure, HolderName, LeaseQuery, Status};
use axum::{
    extract::{Extension, FromRequestParts, Path, State, WebSocketUpgrade},
    response::{IntoResponse, Response},
};
use futures_util::{StreamExt as _, stream::FuturesUnordered};
use http::{HeaderMap, header::SEC_WEBSOCKET_PROTOCOL, request::Parts};
use leasehold_api::{
    Code, HolderList, HolderPresence, HolderRemoved, NODE, PresenceRequest, paths, stream::Encoding,
};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::leases::{from_cursor, tenant, to_cursor};
use crate::{
    App, Json, JsonBody, Query, Reject,
    along::Along,
    auth::{Auth, LeasesRead, LeasesWrite},
    ops,
    query::{MAX_PAGE, page_limit},
    streams::{self, Peer},
};

/// What a socket reads and writes at a time. The library's own 128 KiB each are allocated whether they
/// are used or not; a renewal of ten leases takes one.
const SOCKET_BUFFER_BYTES: usize = 2 * 1024;

pub(super) fn router() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(present, leave))
        .routes(routes!(stream))
}

/// Announce a holder's presence; repeat before the ttl is over to keep it.
#[utoipa::path(put, path = paths::HOLDER, tag = "holders", security(("bearer" = ["leases:write"])),
    params(("name" = String, Path)), request_body = PresenceRequest,
    responses((status = 200, body = HolderPresence), (status = 409, description = "Another incarnation of this name is there")))]
async fn present(
    Auth(caller, _): Auth<LeasesWrite>,
    State(app): State<App>,
    Path(name): Path<String>,
    JsonBody(request): JsonBody<PresenceRequest>,
) -> Result<Json<HolderPresence>, Reject> {
    let acquire = request.check(&name).map_err(Reject::invalid)?;
    match ops::announce(&app, &caller, acquire).await? {
        Acquired::Granted { leases, .. } => leases
            .first()
            .map(|lease| Json(HolderPresence::from(lease)))
            .ok_or_else(Reject::no_lease),
        Acquired::Refused(refusal) => Err(ops::refused(&caller, &refusal)),
    }
}

/// A holder leaves gracefully: everything it has is released.
///
/// A process names its incarnation, so that it can end only its own presence: when a successor of the
/// same name is there, nothing happens. Without one, whoever is there leaves.
#[utoipa::path(delete, path = paths::HOLDER, tag = "holders", security(("bearer" = ["leases:write"])),
    params(("name" = String, Path), Leaving),
    responses((status = 200, body = HolderRemoved), (status = 409, description = "Several tenants have one of this name"), (status = 404, description = "It is not there, or only another incarnation is")))]
async fn leave(
    Auth(caller, _): Auth<LeasesWrite>,
    State(app): State<App>,
    Path(name): Path<String>,
    Query(query): Query<Leaving>,
) -> Result<Json<HolderRemoved>, Reject> {
    let named =
        HolderName::new(&name).map_err(|invalid| Reject::field("name", invalid.expected))?;
    let own = query
        .incarnation
        .map(|incarnation| leasehold_api::holder(&name, Some(&incarnation)))
        .transpose()?;
    // Who of this name is there: one in each tenant at most.
    let namesakes = LeaseQuery {
        kind: Some(NODE.to_owned()),
        holder: Some(named),
        status: Some(Status::Active),
        tenant: tenant(&caller, query.tenant_id)?,
        limit: MAX_PAGE,
        ..LeaseQuery::default()
    };
    let namesakes = app.authority().leases(namesakes).await?.items;
    let mut meant = namesakes
        .into_iter()
        .filter(|lease| own.as_ref().is_none_or(|own| lease.holder == *own));
    let presence = meant.next().ok_or_else(Reject::no_lease)?;
    if meant.next().is_some() {
        return Err(Reject::new(
            Code::NameAmbiguous,
            "several tenants have a holder of this name: add tenant_id to the query",
        ));
    }
    // Namesakes stay.
    let caller = caller.within(presence.labels.tenant());
    let released = ops::depart(&app, &caller, Departure::Left(presence.holder)).await?;
    Ok(Json(HolderRemoved {
        success: true,
        leases_released: released.len(),
    }))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Filter {
    /// At most this many: 1 to 1000, 100 when absent.
    limit: Option<usize>,
    /// Where the page before ended.
    cursor: Option<String>,
}

/// The holders that are present, ordered by name.
#[utoipa::path(get, path = paths::HOLDERS, tag = "holders", security(("bearer" = ["leases:read"])),
    params(Filter), responses((status = 200, body = HolderList)))]
async fn list(
    Auth(caller, _): Auth<LeasesRead>,
    State(app): State<App>,
    Query(filter): Query<Filter>,
) -> Result<Json<HolderList>, Reject> {
    let query = LeaseQuery {
        kind: Some(NODE.to_owned()),
        status: Some(Status::Active),
        tenant: tenant(&caller, None)?,
        after: filter.cursor.as_deref().map(from_cursor).transpose()?,
        limit: page_limit(filter.limit)?,
        ..LeaseQuery::default()
    };
    let page = app.authority().leases(query).await?;
    Ok(Json(HolderList {
        next_cursor: page
            .items
            .last()
            .filter(|_| page.more)
            .map(|lease| to_cursor(&lease.key)),
        holders: page.items.iter().map(HolderPresence::from).collect(),
    }))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Incarnation {
    /// The holder's process start.
    incarnation: Option<String>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Leaving {
    /// The holder's process start.
    incarnation: Option<String>,
    /// Whose, where several tenants have one of this name.
    tenant_id: Option<String>,
}

/// The holder's stream, as a WebSocket: everything a holder does goes up, answers and losses come down.
///
/// The frames and their two encodings, which are its subprotocols, are in the page on the stream. Without
/// a subprotocol the readable one is taken; with none that is known the stream is refused.
///
/// When a direct connection is closed by the holder's kernel without a goodbye and the holder does not
/// connect again within a short linger, it is known to be dead, and its leases that asked for it are
/// released. A holder that names its own end of the connection (`Leasehold-Own-Address`) is taken for
/// direct only when the server sees the same one.
#[utoipa::path(get, path = paths::HOLDER_STREAM, tag = "holders", security(("bearer" = ["leases:write"])),
    params(("name" = String, Path), Incarnation),
    responses((status = 101, description = "The stream"),
        (status = 400, description = "No subprotocol that is known here"), (status = 426, description = "Not a WebSocket")))]
async fn stream(
    Auth(caller, _): Auth<LeasesWrite>,
    State(app): State<App>,
    Path(name): Path<String>,
    Query(query): Query<Incarnation>,
    Extension(along): Extension<Arc<Along>>,
    Upgrade { encoding, upgrade }: Upgrade,
) -> Result<Response, Reject> {
    let holder = leasehold_api::holder(&name, query.incarnation.as_deref())?;
    let revoked = caller.revoked.clone();
    let peer = Peer {
        holder,
        caller,
        direct: along.origin.direct,
        encoding,
    };
    // Tracked, so that a server that stops waits for its goodbyes.
    let tracked = app.tasks().token();
    Ok(upgrade
        .protocols([encoding.subprotocol()])
        .max_message_size(streams::max_message_bytes(&app))
        .read_buffer_size(SOCKET_BUFFER_BYTES)
        .write_buffer_size(SOCKET_BUFFER_BYTES)
        .on_upgrade(move |socket| async move {
            // A revoked credential keeps nothing open, and proves nothing about its holder. Polled only when it
            // was woken: all streams of the credential share the token's lock.
            let mut revoked = FuturesUnordered::from_iter([revoked.cancelled_owned()]);
            tokio::select! {
                biased;
                Some(()) = revoked.next() => {}
                () = streams::serve(app, peer, socket) => {}
            }
            drop((along, tracked));
        }))
}

/// A WebSocket, and how its frames are to be written.
struct Upgrade {
    encoding: Encoding,
    upgrade: WebSocketUpgrade,
}

impl FromRequestParts<App> for Upgrade {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Response> {
        let encoding = encoding(&parts.headers).map_err(IntoResponse::into_response)?;
        let upgrade = WebSocketUpgrade::from_request_parts(parts, app).await;
        let upgrade = upgrade.map_err(IntoResponse::into_response)?;
        Ok(Self { encoding, upgrade })
    }
}

/// The first subprotocol that is known here; without any, the one for people.
fn encoding(headers: &HeaderMap) -> Result<Encoding, Reject> {
    let mut asked = headers
        .get_all(SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .peekable();
    if asked.peek().is_none() {
        return Ok(Encoding::Json);
    }
    asked.find_map(Encoding::of).ok_or_else(|| {
        let known = Encoding::ALL.map(Encoding::subprotocol).join(" or ");
        Reject::field("sec-websocket-protocol", known)
    })
}
