//! Changes: pages of the history, and the live stream.

use ::lease::{EventKind, EventQuery, Key};
use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use http::HeaderMap;
use leasehold_api::{Event, EventList, paths};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::leases::tenant;
use crate::{
    App, Json, Query, Reject,
    auth::{Auth, LeasesRead},
    query::{page_limit, seen_revision},
    streams::{self, Format},
};

pub(super) fn router() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(page))
        .routes(routes!(stream))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Filter {
    /// Only events after this revision.
    after: Option<u64>,
    /// Only this kind of key.
    kind: Option<String>,
    /// Only this key: `kind:id`.
    key: Option<String>,
    /// Only this sort of event, such as `lease_expired`.
    #[serde(rename = "type")]
    event_type: Option<String>,
    /// At most this many: 1 to 1000, 100 when absent.
    limit: Option<usize>,
}

/// A page of the history, oldest first.
#[utoipa::path(get, path = paths::EVENTS, tag = "events", security(("bearer" = ["leases:read"])),
    params(Filter), responses((status = 200, body = EventList)))]
async fn page(
    Auth(caller, _): Auth<LeasesRead>,
    State(app): State<App>,
    Query(filter): Query<Filter>,
) -> Result<Json<EventList>, Reject> {
    if let Some(kind) = &filter.kind {
        ::lease::check_kind(kind)?;
    }
    let key: Option<Key> = filter
        .key
        .as_deref()
        .map(str::parse)
        .transpose()
        .map_err(|invalid: ::lease::Invalid| Reject::field("key", invalid.expected))?;
    let event = match filter.event_type.as_deref() {
        None => None,
        Some(word) => Some(
            EventKind::parse(word)
                .ok_or_else(|| Reject::field("type", "an event such as lease_expired"))?,
        ),
    };
    let after = seen_revision("after", filter.after.unwrap_or(0))?;
    let query = EventQuery {
        after,
        key,
        kind: filter.kind,
        event,
        tenant: tenant(&caller, None)?,
        limit: page_limit(filter.limit)?,
    };
    let page = app.authority().events(query).await?;
    let last = page.events.last().map(|event| event.revision);
    Ok(Json(EventList {
        events: page.events.iter().map(Event::from).collect(),
        more: page.more,
        // Without more, everything up to the newest revision was looked at.
        next_after: match last {
            Some(last) if page.more => last.get(),
            _ => page.newest.get().max(after.get()),
        },
        oldest: page.oldest.get(),
        newest: page.newest.get(),
        gap: page.oldest > after.next(),
    }))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct From {
    /// Only changes after this revision; the header `Last-Event-ID` goes before it.
    after: Option<u64>,
}

/// Changes as server-sent events, each with its revision as id.
///
/// A reader that comes back with `Last-Event-ID` gets what it missed. When the history no longer has
/// that, the first event is a `snapshot` of everything live. The last event of a server that stops is
/// `goodbye`.
#[utoipa::path(get, path = paths::EVENT_STREAM, tag = "events", security(("bearer" = ["leases:read"])),
    params(From, ("Last-Event-ID" = Option<u64>, Header, description = "The last revision that was seen")),
    responses((status = 200, body = String, content_type = "text/event-stream")))]
async fn stream(
    Auth(caller, _): Auth<LeasesRead>,
    State(app): State<App>,
    Query(query): Query<From>,
    headers: HeaderMap,
) -> Result<Response, Reject> {
    let from = match headers.get("last-event-id") {
        None => query.after.map(|seen| seen_revision("after", seen)),
        Some(id) => {
            let id = id.to_str().ok().and_then(|id| id.parse().ok());
            Some(seen_revision("Last-Event-ID", id.unwrap_or(u64::MAX)))
        }
    };
    let events = streams::events(&app, caller, from.transpose()?, Format::Public).await?;
    Ok(events.into_response())
}
