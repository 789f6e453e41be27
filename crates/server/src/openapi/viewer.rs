//! A page that shows the specification, served from the binary: nothing is loaded from elsewhere.

use std::fmt::Write as _;

use axum::{
    Router,
    body::Body,
    response::{IntoResponse, Response},
    routing::get,
};
use http::header;
use leasehold_api::{Code, paths};

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
        .route(paths::PROBLEMS, get(problems))
        .route(&format!("{}/viewer.js", paths::DOCS), get(script))
        .route(&format!("{}/viewer.css", paths::DOCS), get(style))
}

/// Where a problem's `type` leads.
async fn problems() -> Response {
    let mut rows = String::new();
    for code in Code::ALL {
        let _ = write!(
            rows,
            "<section id=\"{}\"><h2>{code}</h2><p>{}. Status {}.{}{}</p><p>{}</p></section>",
            code.as_str().to_lowercase(),
            code.title(),
            code.status(),
            if code.retryable() {
                " The same request may succeed later."
            } else {
                ""
            },
            if code.has_no_side_effects() {
                " Nothing happened."
            } else {
                " It may have happened."
            },
            escaped(code.advice()),
        );
    }
    let page = include_str!("problems.html").replace("{problems}", &rows);
    file("text/html; charset=utf-8", page)
}

/// The advice as HTML: its only mark-up is code between back-quotes.
fn escaped(text: &str) -> String {
    let safe = text
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    safe.split('`')
        .enumerate()
        .map(|(n, part)| {
            if n % 2 == 1 {
                format!("<code>{part}</code>")
            } else {
                part.to_owned()
            }
        })
        .collect()
}

fn file(media: &'static str, text: impl Into<Body>) -> Response {
    let headers = [
        (header::CONTENT_TYPE, media),
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (headers, text.into()).into_response()
}
