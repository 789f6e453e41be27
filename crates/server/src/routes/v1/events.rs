//! Changes: pages of the history, and the live stream.

use ::lease::{EventKind, EventQuery, HolderName, Key, Watching};
use axum::{
    extract::State,
    response::{IntoResponse as _, Response},
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
    query::{last_event_id, page_limit, seen_revision},
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
    params(Filter), responses((status = 200, body = EventList<'_>)))]
async fn page(
    Auth(caller, _): Auth<LeasesRead>,
    State(app): State<App>,
    Query(filter): Query<Filter>,
) -> Result<Response, Reject> {
    if let Some(kind) = &filter.kind {
        ::lease::check_kind(kind)?;
    }
    let key = parse_key(filter.key.as_deref())?;
    let event = parse_type(filter.event_type.as_deref())?;
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
    let list = EventList {
        events: page
            .events
            .iter()
            .filter(|event| !event.key.is_private())
            .map(Event::from)
            .collect(),
        more: page.more,
        // Without more, everything up to the newest revision was looked at.
        next_after: match last {
            Some(last) if page.more => last.get(),
            _ => page.newest.get().max(after.get()),
        },
        oldest: page.oldest.get(),
        newest: page.newest.get(),
        gap: page.oldest > after.next(),
    };
    // Written while what it borrows is here.
    Ok(Json(list).into_response())
}

fn parse_key(key: Option<&str>) -> Result<Option<Key>, Reject> {
    key.map(str::parse)
        .transpose()
        .map_err(|invalid: ::lease::Invalid| Reject::field("key", invalid.expected))
}

fn parse_type(word: Option<&str>) -> Result<Option<EventKind>, Reject> {
    word.map(|word| {
        EventKind::parse(word)
            .ok_or_else(|| Reject::field("type", "an event such as lease_expired"))
    })
    .transpose()
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct StreamFilter {
    /// Only changes after this revision; the header `Last-Event-ID` goes before it.
    after: Option<u64>,
    /// Only this kind of key.
    kind: Option<String>,
    /// Only this key: `kind:id`.
    key: Option<String>,
    /// Only this sort of event, such as `lease_expired`.
    #[serde(rename = "type")]
    event_type: Option<String>,
    /// Only leases of this holder, any incarnation.
    holder: Option<String>,
    /// Whether renewals are sent; they are unless this is `false`.
    renewals: Option<bool>,
}

/// Changes as server-sent events, each with its revision as id.
///
/// A reader that comes back with `Last-Event-ID` gets what it missed. When the history no longer has
/// that, the first event is a `snapshot` of everything live that the filter lets through. A stream on
/// which other changes pass by sends an id without data now and then, so that a reader resumes from
/// there. The last event of a server that stops is `goodbye`.
#[utoipa::path(get, path = paths::EVENT_STREAM, tag = "events", security(("bearer" = ["leases:read"])),
    params(StreamFilter, ("Last-Event-ID" = Option<u64>, Header, description = "The last revision that was seen")),
    responses((status = 200, body = String, content_type = "text/event-stream")))]
async fn stream(
    Auth(caller, _): Auth<LeasesRead>,
    State(app): State<App>,
    Query(query): Query<StreamFilter>,
    headers: HeaderMap,
) -> Result<Response, Reject> {
    let after = || query.after.map(|seen| seen_revision("after", seen));
    let from = match last_event_id(&headers)? {
        None => after().transpose()?,
        seen => seen,
    };
    let watching = Watching {
        from,
        kinds: query.kind.into_iter().collect(),
        key: parse_key(query.key.as_deref())?,
        holder: query.holder.as_deref().map(HolderName::new).transpose()?,
        events: parse_type(query.event_type.as_deref())?
            .into_iter()
            .collect(),
        renewals: query.renewals.unwrap_or(true),
        ..Watching::default()
    };
    streams::events(&app, caller, watching, Format::Public).await
}
