//! What a session's pipeline wrote.

use std::sync::Arc;

use axum::{
    Extension,
    extract::{Path, State},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::header;
use lease::session::Session;
use leasehold_api::{
    Code,
    sessions::{HLS, stream_file},
};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{Shared, heartbeat, sessions};
use crate::{
    App, Reject,
    auth::{Auth, V3Read},
};

pub(super) fn router() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(file))
}

/// A playlist or a segment.
#[derive(ToSchema)]
#[schema(value_type = String, format = Binary)]
#[expect(dead_code, reason = "describes bytes in the specification")]
struct StreamFile(Vec<u8>);

/// The session's playlist (`index.m3u8`) or one of its segments. Fetching the playlist counts as a
/// heartbeat: a phone that suspends timers still plays.
#[utoipa::path(get, path = HLS, tag = "sessions", security(("bearer" = ["v3:read"])),
    params(("session_id" = String, Path), ("file" = String, Path)),
    responses((status = 200, description = "The file", content(
            (StreamFile = "application/vnd.apple.mpegurl"), (StreamFile = "video/mp2t"),
            (StreamFile = "video/mp4"), (StreamFile = "text/vtt"))),
        (status = 404, description = "No such session or file"),
        (status = 410, description = "The session is over")))]
async fn file(
    Auth(caller, _): Auth<V3Read>,
    State(app): State<App>,
    Extension(shared): Extension<Arc<Shared>>,
    Path((id, file)): Path<(String, String)>,
) -> Result<Response, Reject> {
    let session = sessions::find(&app, &caller, &id).await?;
    let (media, is_playlist) = stream_file(&file).ok_or_else(no_file)?;
    if is_playlist {
        heartbeat::beat(&app, &caller, &shared, &id).await?;
    }
    let bytes = match here(&shared, &session, &file).await {
        Some(bytes) => bytes,
        None => shared
            .relay
            .fetch(&app, &session, &file)
            .await?
            .ok_or_else(no_file)?,
    };
    let headers = [
        (header::CONTENT_TYPE, media),
        (header::CACHE_CONTROL, "no-store"),
    ];
    Ok((headers, bytes).into_response())
}

/// What a worker on this machine wrote.
async fn here(shared: &Shared, session: &Session, file: &str) -> Option<Bytes> {
    let output = shared.options.output_dir.as_ref()?;
    // The id is a UUID and the name is plain: neither can leave the session's folder.
    let path = output.join(session.session_id.to_string()).join(file);
    tokio::fs::read(path).await.ok().map(Bytes::from)
}

fn no_file() -> Reject {
    Reject::new(Code::NotFound, "the session has no such file here")
}
