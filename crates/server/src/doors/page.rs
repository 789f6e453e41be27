//! The web page, embedded into the binary.

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use http::{HeaderValue, Uri, header};
use leasehold_api::Code;
use rust_embed::RustEmbed;
use utoipa_axum::router::OpenApiRouter;

use crate::{App, Reject};

/// Only its own files and the streams it puts together, nothing inline, and never inside another page.
const POLICY: &str = "default-src 'self'; media-src 'self' blob:; frame-ancestors 'none'; base-uri 'none'; form-action 'self'";

#[derive(RustEmbed)]
#[folder = "../../ui"]
struct Files;

pub(super) fn router() -> OpenApiRouter<App> {
    OpenApiRouter::new().fallback(file)
}

/// Whatever is not an interface is a file of the page, or nothing.
async fn file(method: http::Method, uri: Uri) -> Response {
    let path = uri.path().trim_start_matches('/');
    let path = if path.is_empty() { "index.html" } else { path };
    let file = (method == http::Method::GET || method == http::Method::HEAD)
        .then(|| Files::get(path))
        .flatten();
    let Some(file) = file else {
        return Reject::new(Code::NotFound, "there is nothing at this path").into_response();
    };
    let media = match path.rsplit('.').next().unwrap_or_default() {
        "html" => "text/html; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "svg" => "image/svg+xml",
        "json" => "application/json",
        "woff2" => "font/woff2",
        "png" => "image/png",
        _ => "application/octet-stream",
    };
    let mut response = Response::new(Body::from(file.data));
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, media),
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}
