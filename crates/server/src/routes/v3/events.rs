//! One session's changes as server-sent events.

use std::{convert::Infallible, sync::Arc};

use axum::{
    Extension,
    extract::{Path, State},
    response::{
        IntoResponse, Response,
        sse::{Event as Sse, KeepAlive},
    },
};
use futures_util::{StreamExt as _, stream};
use http::HeaderMap;
use lease::{
    Key, Revision, Watching,
    session::{self, Session},
};
use leasehold_api::sessions::EVENTS;
use leasehold_client::{Change, Follower};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{SessionOptions, Shared, sessions};
use crate::{
    App, Reject,
    auth::{Auth, V3Read},
    metrics::Open,
    query::last_event_id,
};

pub(super) fn router() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(events))
}

struct Watcher {
    app: App,
    options: SessionOptions,
    key: Key,
    follower: Follower,
    ended: bool,
    _open: Open,
}

/// The session's changes. Each `state` event carries the whole session as it is then; the stream ends
/// with its last state. Resumable by `Last-Event-ID`.
#[utoipa::path(get, path = EVENTS, tag = "sessions", security(("bearer" = ["v3:read"])),
    params(("session_id" = String, Path), ("Last-Event-ID" = Option<u64>, Header, description = "The last revision that was seen")),
    responses((status = 200, body = String, content_type = "text/event-stream"), (status = 404, description = "Unknown")))]
async fn events(
    Auth(caller, _): Auth<V3Read>,
    State(app): State<App>,
    Extension(shared): Extension<Arc<Shared>>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Reject> {
    let from = last_event_id(&headers)?;
    let session = sessions::find(&app, &caller, &id).await?;
    let key = session::key(session.session_id);
    // Without a revision it begins with a resync: the session as it is once the watch is open.
    let follower = Follower::new(
        app.shared_authority(),
        app.parts().clock.clone(),
        Watching::key(key.clone()).after(from),
    );
    let watcher = Watcher {
        options: shared.options.clone(),
        key,
        follower,
        ended: false,
        _open: app.metrics().watcher(),
        app: app.clone(),
    };
    let changes = stream::unfold(watcher, |mut watcher| async {
        let message = watcher.next().await?;
        Some((message, watcher))
    });
    let messages = changes.map(Ok::<_, Infallible>);
    let heartbeat = app.parts().limits.stream_heartbeat();
    Ok(axum::response::Sse::new(messages)
        .keep_alive(KeepAlive::new().interval(heartbeat).text("alive"))
        .into_response())
}

impl Watcher {
    async fn next(&mut self) -> Option<Sse> {
        while !self.ended {
            let change = tokio::select! {
                () = self.app.closing().cancelled() => {
                    self.ended = true;
                    return Some(Sse::default().event("goodbye").data("{}"));
                }
                change = self.follower.next() => change,
            };
            let revision = match change {
                Ok(Change::Event(event)) => Some(event.revision),
                Ok(Change::Resync(snapshot)) => snapshot.map(|snapshot| snapshot.revision),
                Ok(Change::Progress(revision)) => {
                    // A reader notes the id and shows nothing.
                    return Some(Sse::default().id(revision.to_string()).comment("progress"));
                }
                Ok(Change::Interrupted(_)) => continue,
                Err(error) => {
                    tracing::info!(%error, "a watch ended");
                    return None;
                }
            };
            let (message, over) = state_of(&self.app, &self.options, &self.key, revision).await;
            self.ended = over;
            return Some(message);
        }
        None
    }
}

/// The session as it is now, and whether that is its end.
async fn state_of(
    app: &App,
    options: &SessionOptions,
    key: &Key,
    revision: Option<Revision>,
) -> (Sse, bool) {
    let message = match revision {
        Some(revision) => Sse::default().id(revision.to_string()),
        None => Sse::default(),
    };
    let view = match app.authority().record(key.clone()).await {
        Ok(Some(record)) => match Session::from_record(&record) {
            Ok(session) => {
                let over = session.state.is_terminal();
                sessions::view(app, options, session)
                    .await
                    .map(|view| (view, over))
            }
            Err(invalid) => Err(invalid.into()),
        },
        Ok(None) => return (message.event("forgotten").data("{}"), true),
        Err(error) => Err(error.into()),
    };
    match view {
        Ok((view, over)) => {
            let text = serde_json::to_string(&view).unwrap_or_default();
            (message.event("state").data(text), over)
        }
        Err(reject) => {
            let text = serde_json::to_string(reject.problem()).unwrap_or_default();
            (message.event("failed").data(text), true)
        }
    }
}
