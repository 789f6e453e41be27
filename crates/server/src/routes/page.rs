//! The web page, built from `ui/` and embedded into the binary.
//!
//! Files under `assets/` carry a digest of their content in their names, so a browser keeps them for
//! good; everything else is asked for again and answered with 304 while it is the same. Compressed
//! copies are made when the page is built, not here.

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use leasehold_api::Code;
use rust_embed::{EmbeddedFile, RustEmbed};
use utoipa_axum::router::OpenApiRouter;

use crate::{App, Reject};

/// Only its own files and the streams it puts together, nothing inline, and never inside another page.
const POLICY: &str = "default-src 'self'; img-src 'self' blob: data:; media-src 'self' blob:; \
    object-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'";

/// The folder whose files never change under the same name.
const HASHED: &str = "assets/";

/// Compressed copies, the smallest first: the name of the encoding and what its file name ends with.
const ENCODINGS: [(&str, &str); 2] = [("br", ".br"), ("gzip", ".gz")];

#[derive(RustEmbed)]
#[folder = "../../ui/dist"]
struct Files;

pub(super) fn router() -> OpenApiRouter<App> {
    OpenApiRouter::new().fallback(file)
}

/// Whatever is not an API is a file of the page, or nothing.
async fn file(method: Method, uri: Uri, request: HeaderMap) -> Response {
    let path = uri.path().trim_start_matches('/');
    let path = match path {
        "" => "index.html",
        // Asked for by browsers that do not read the page first.
        "favicon.ico" => "favicon.svg",
        path => path,
    };
    let compressed = ENCODINGS.iter().any(|(_, end)| path.ends_with(end));
    let found = (method == Method::GET || method == Method::HEAD)
        .then(|| Files::get(path).filter(|_| !compressed))
        .flatten();
    let Some(plain) = found else {
        return Reject::new(Code::NotFound, "there is nothing at this path").into_response();
    };
    let (encoding, file) = smallest(path, plain, &request);
    let etag = etag(&file);
    let known = request
        .get(header::IF_NONE_MATCH)
        .is_some_and(|value| value.as_bytes() == etag.as_bytes());
    let mut response = if known {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        let mut response = Response::new(Body::from(file.data));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, media_type(path));
        if let Some(encoding) = encoding {
            let encoding = HeaderValue::from_static(encoding);
            headers.insert(header::CONTENT_ENCODING, encoding);
        }
        response
    };
    let caching = if path.starts_with(HASHED) {
        "public, max-age=31536000, immutable"
    } else {
        "no-cache"
    };
    let headers = response.headers_mut();
    headers.insert(header::ETAG, etag);
    for (name, value) in [
        (header::CACHE_CONTROL, caching),
        (header::VARY, "accept-encoding"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// The smallest copy that the browser can read.
fn smallest(
    path: &str,
    plain: EmbeddedFile,
    request: &HeaderMap,
) -> (Option<&'static str>, EmbeddedFile) {
    let accepted: Vec<&str> = request
        .get_all(header::ACCEPT_ENCODING)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter(|word| !word.replace(' ', "").ends_with(";q=0"))
        .filter_map(|word| word.split(';').next())
        .map(str::trim)
        .collect();
    for (encoding, end) in ENCODINGS {
        if accepted.contains(&encoding)
            && let Some(file) = Files::get(&format!("{path}{end}"))
        {
            return (Some(encoding), file);
        }
    }
    (None, plain)
}

fn etag(file: &EmbeddedFile) -> HeaderValue {
    let digest = hex::encode(&file.metadata.sha256_hash()[..16]);
    HeaderValue::from_str(&format!("\"{digest}\"")).unwrap_or(HeaderValue::from_static("\"\""))
}

fn media_type(path: &str) -> HeaderValue {
    HeaderValue::from_static(match path.rsplit('.').next().unwrap_or_default() {
        "html" => "text/html; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "svg" => "image/svg+xml",
        "json" => "application/json",
        "woff2" => "font/woff2",
        "png" => "image/png",
        _ => "application/octet-stream",
    })
}
