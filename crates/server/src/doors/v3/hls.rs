//! What a session's pipeline wrote.

use std::sync::Arc;

use axum::{
    Extension,
    extract::{Path, State},
    response::{IntoResponse, Response},
};
use http::header;
use leasehold_api::{Code, sessions::HLS};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{Shared, heartbeat, sessions};
use crate::{
    App, Reject,
    auth::{Auth, V3Read},
};

pub(super) fn router() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(file))
}

/// The session's playlist (`index.m3u8`) or one of its segments. Fetching the playlist counts as a
/// heartbeat: a phone that suspends timers still plays.
#[utoipa::path(get, path = HLS, tag = "sessions", security(("bearer" = ["v3:read"])),
    params(("session_id" = String, Path), ("file" = String, Path)),
    responses((status = 200, body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 404, description = "No such session or file"),
        (status = 410, description = "The session is over")))]
async fn file(
    Auth(caller, _): Auth<V3Read>,
    State(app): State<App>,
    Extension(shared): Extension<Arc<Shared>>,
    Path((id, file)): Path<(String, String)>,
) -> Result<Response, Reject> {
    let session = sessions::find(&app, &caller, &id).await?;
    let (media, is_playlist) = media_type(&file).ok_or_else(no_file)?;
    if is_playlist {
        heartbeat::beat(&app, &caller, &shared, &id).await?;
    }
    let output = shared.options.output_dir.as_ref().ok_or_else(no_file)?;
    // The id is a UUID and the name is plain: neither can leave the session's folder.
    let path = output.join(session.session_id.to_string()).join(&file);
    let bytes = tokio::fs::read(path).await.map_err(|_| no_file())?;
    let headers = [
        (header::CONTENT_TYPE, media),
        (header::CACHE_CONTROL, "no-store"),
    ];
    Ok((headers, bytes).into_response())
}

/// The media type of a file that a pipeline may have written, and whether it is a playlist.
fn media_type(file: &str) -> Option<(&'static str, bool)> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if file.starts_with('.') || file.len() > 128 || !file.bytes().all(plain) {
        return None;
    }
    match file.rsplit_once('.')?.1 {
        "m3u8" => Some(("application/vnd.apple.mpegurl", true)),
        "ts" => Some(("video/mp2t", false)),
        "m4s" | "mp4" => Some(("video/mp4", false)),
        "vtt" => Some(("text/vtt", false)),
        _ => None,
    }
}

fn no_file() -> Reject {
    Reject::new(Code::NotFound, "the session has no such file here")
}

#[cfg(test)]
mod tests {
    use super::media_type;

    #[test]
    fn no_name_leaves_the_folder() {
        for wrong in [
            "../x.ts",
            "..",
            ".hidden.ts",
            "a/b.ts",
            "a\\b.ts",
            "x",
            "x.exe",
            "",
            "é.ts",
        ] {
            assert_eq!(media_type(wrong), None, "{wrong}");
        }
        assert_eq!(media_type("seg00001.ts"), Some(("video/mp2t", false)));
    }
}
