//! A page that shows the specification, served from the binary: nothing is loaded from elsewhere.

use axum::{
    Router,
    response::{IntoResponse, Response},
    routing::get,
};
use http::header;
use leasehold_api::paths;

use crate::App;

/// Only its own files, and never inside another page.
const POLICY: &str =
    "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

pub(super) fn router() -> Router<App> {
    let page = || async { file("text/html; charset=utf-8", include_str!("viewer.html")) };
    let script = || async { file("text/javascript; charset=utf-8", include_str!("viewer.js")) };
    let style = || async { file("text/css; charset=utf-8", include_str!("viewer.css")) };
    Router::new()
        .route(paths::DOCS, get(page))
        .route(&format!("{}/viewer.js", paths::DOCS), get(script))
        .route(&format!("{}/viewer.css", paths::DOCS), get(style))
}

fn file(media: &'static str, text: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, media),
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (headers, text).into_response()
}
