//! Reading sessions.

use std::sync::Arc;

use axum::{
    Extension,
    extract::{Path, State},
};
use lease::{
    EventQuery, Lease, RecordQuery, Revision, UnixMillis,
    session::{self, Reason, Session, State as Life},
};
use leasehold_api::sessions::{ONE, SESSIONS, SessionList, SessionView};
use leasehold_client::pages::Pages;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{SessionOptions, Shared, no_session, session_key};
use crate::{
    App, Json, Query, Reject,
    auth::{Auth, Caller, V3Admin, V3Read},
    query::page_limit,
};

pub(super) fn router() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(show))
        .routes(routes!(list))
}

/// One session, in every state.
#[utoipa::path(get, path = ONE, tag = "sessions", security(("bearer" = ["v3:read"])),
    params(("session_id" = String, Path)),
    responses((status = 200, body = SessionView), (status = 404, description = "Unknown")))]
async fn show(
    Auth(caller, _): Auth<V3Read>,
    State(app): State<App>,
    Extension(shared): Extension<Arc<Shared>>,
    Path(id): Path<String>,
) -> Result<Json<SessionView>, Reject> {
    let session = find(&app, &caller, &id).await?;
    view(&app, &shared.options, session).await.map(Json)
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Filter {
    /// Only sessions in this state.
    state: Option<String>,
    /// At most this many: 1 to 1000, 100 when absent.
    limit: Option<usize>,
    /// Continue where the last page ended.
    cursor: Option<String>,
}

/// All sessions, newest first.
#[utoipa::path(get, path = SESSIONS, tag = "sessions", security(("bearer" = ["v3:admin"])),
    params(Filter), responses((status = 200, body = SessionList)))]
async fn list(
    Auth(caller, _): Auth<V3Admin>,
    State(app): State<App>,
    Extension(shared): Extension<Arc<Shared>>,
    Query(filter): Query<Filter>,
) -> Result<Json<SessionList>, Reject> {
    let state = match filter.state.as_deref() {
        None => None,
        Some(word) => Some(Life::parse(word).ok_or_else(|| {
            Reject::field(
                "state",
                "new, starting, running, stopping, stopped, failed or ended",
            )
        })?),
    };
    let limit = page_limit(filter.limit)?;
    let query = RecordQuery {
        kind: session::KIND.into(),
        prefix: String::new(),
        after: filter.cursor,
        limit,
    };
    let mut sessions = Vec::new();
    let mut next_cursor = None;
    // Pages until there is enough that matches: the filter is applied here.
    let mut pages = Pages::new(app.authority(), query);
    'pages: while let Some(page) = pages.next().await? {
        for record in &page {
            let session = Session::from_record(record)?;
            if !caller.sees(session.tenant.as_deref())
                || state.is_some_and(|state| session.state != state)
            {
                continue;
            }
            if sessions.len() == limit {
                next_cursor = sessions
                    .last()
                    .map(|view: &SessionView| view.session_id.clone());
                break 'pages;
            }
            sessions.push(view(&app, &shared.options, session).await?);
        }
    }
    Ok(Json(SessionList {
        sessions,
        next_cursor,
    }))
}

/// A session that this caller may see.
pub(super) async fn find(app: &App, caller: &Caller, id: &str) -> Result<Session, Reject> {
    let record = app
        .authority()
        .record(session_key(id)?)
        .await?
        .ok_or_else(no_session)?;
    let session = Session::from_record(&record)?;
    if caller.sees(session.tenant.as_deref()) {
        Ok(session)
    } else {
        Err(no_session())
    }
}

/// The session as its clients see it.
pub(super) async fn view(
    app: &App,
    options: &SessionOptions,
    session: Session,
) -> Result<SessionView, Reject> {
    let lease = app
        .authority()
        .lease(session::key(session.session_id))
        .await?;
    let lease_expires_at = match &lease {
        Some(lease) => lease.expires_at,
        None => ended_at(app, &session).await?,
    };
    let id = session.session_id.to_string();
    let reason = (session.reason != Reason::None)
        .then(|| {
            serde_json::to_value(session.reason)
                .ok()?
                .as_str()
                .map(str::to_owned)
        })
        .flatten();
    Ok(SessionView {
        playback_url: (session.state == Life::Running)
            .then(|| format!("/api/v3/sessions/{id}/hls/index.m3u8")),
        session_id: id,
        service_ref: session.service_ref,
        profile: session.profile,
        state: session.state.as_str().to_owned(),
        reason,
        reason_detail: session.reason_detail,
        outcome: session.outcome,
        stop_reason: session.stop_reason,
        correlation_id: session.correlation_id,
        created_at: session.created_at.into(),
        updated_at: session.updated_at.into(),
        lease_expires_at: lease_expires_at.into(),
        heartbeat_interval: options.heartbeat_seconds(),
        last_heartbeat: lease
            .and_then(|lease: Lease| lease.renewed_at)
            .map(Into::into),
        tuner_slot: session.tuner_slot,
    })
}

/// Until when the session's lease lasts, or lasted.
pub(super) async fn expiry(app: &App, session: &Session) -> Result<UnixMillis, Reject> {
    let lease = app
        .authority()
        .lease(session::key(session.session_id))
        .await?;
    match lease {
        Some(lease) => Ok(lease.expires_at),
        None => ended_at(app, session).await,
    }
}

/// The history knows until when a lease that is over would have lasted.
pub(super) async fn ended_at(app: &App, session: &Session) -> Result<UnixMillis, Reject> {
    let page = app
        .authority()
        .events(EventQuery {
            after: Revision::ZERO,
            key: Some(session::key(session.session_id)),
            limit: 100,
            ..EventQuery::default()
        })
        .await?;
    let last = page
        .events
        .iter()
        .rev()
        .find_map(|event| event.lease.as_ref());
    Ok(last.map_or(session.updated_at, |lease| lease.expires_at))
}
