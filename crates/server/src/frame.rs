//! The frame around every request: its id, the guard, budgets, time limits, panics, the log, and
//! problems written out.

use std::{
    net::SocketAddr,
    panic::AssertUnwindSafe,
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
};

use axum::{
    body::Body,
    extract::{ConnectInfo, MatchedPath, Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use futures_util::FutureExt;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use hyper::body::Body as _;
use leasehold_api::{Code, problem::MEDIA_TYPE};
use tokio::time::{Instant, timeout};
use uuid::Uuid;

use crate::{
    App, Reject,
    along::{Along, StreamBody},
    problem::of_status,
    shed::Class,
};

/// Names a request in answers and logs.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// A longer id from outside is replaced: it goes into every log line.
const MAX_REQUEST_ID_BYTES: usize = 128;

/// The word that a method is counted under. Whatever else somebody makes up is one of many.
fn counted_as(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "OTHER",
    }
}

pub(crate) async fn frame(
    State(app): State<App>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    mut request: Request,
    next: Next,
) -> Response {
    let began = Instant::now();
    let id = request_id(request.headers());
    let method = request.method().clone();
    let class = Class::of(&method, request.uri().path());
    let route = request.extensions().get::<MatchedPath>().cloned();
    let route = route.as_ref().map_or("unmatched", MatchedPath::as_str);
    let origin = app.parts().guard.origin(peer.ip(), request.headers());
    let along = Along::new(app, class, origin.named(peer, request.headers()));
    request.extensions_mut().insert(along.clone());
    let is_api = request.uri().path().starts_with("/api/");
    let response = admitted(&along, request, next).await;
    let mut response = written(response, &id);
    guarded(response.headers_mut(), is_api, along.app.parts().encrypted);
    let status = response.status().as_u16();
    let credential = along.caller.get().map_or("-", |caller| &*caller.token_id);
    let took = began.elapsed();
    let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    let (request_id, client) = (id.to_str().unwrap_or_default(), origin.client);
    // A 503 is for the caller to repeat; what is behind it is logged once, where it is noticed.
    if status >= 500 && status != 503 {
        tracing::warn!(request_id, %method, route, status, took_us, credential, %client, "request failed");
    } else if class == Class::Free {
        tracing::trace!(request_id, %method, route, status, took_us, "request");
    } else {
        tracing::debug!(request_id, %method, route, status, took_us, credential, %client, "request");
    }
    let word = counted_as(&method);
    along.app.metrics().request(word, route, status, took);
    response.headers_mut().insert(REQUEST_ID, id);
    if class == Class::Stream && response.status().is_success() {
        response = response.map(|body| Body::new(StreamBody::new(body, along)));
    }
    response
}

async fn admitted(along: &Along, request: Request, next: Next) -> Response {
    let limits = &along.app.parts().limits;
    if !along.app.parts().guard.admits(along.origin) {
        return Reject::new(
            Code::AuthorizationFailed,
            "this network may not talk to the server",
        )
        .into_response();
    }
    if has_nul(request.uri().path()) || request.uri().query().is_some_and(has_nul) {
        return Reject::field("query", "text without the character NUL").into_response();
    }
    // With a body, the permit is taken when the body has arrived.
    let class = along.class;
    let later = matches!(class, Class::Keep | Class::Other) && !request.body().is_end_stream();
    if !later && let Err(reject) = along.admit() {
        return reject.into_response();
    }
    let answer = AssertUnwindSafe(next.run(request)).catch_unwind();
    // A stream lives as long as it likes, and an acquire limits itself: it may wait.
    let answer = if matches!(class, Class::Stream | Class::Acquire) {
        answer.await
    } else {
        match timeout(limits.request_timeout(), answer).await {
            Ok(answer) => answer,
            Err(_) => return too_slow().into_response(),
        }
    };
    answer.unwrap_or_else(|_| {
        tracing::error!("a handler panicked");
        Reject::new(Code::InternalError, "something is wrong on the server").into_response()
    })
}

/// Whether a part of a URI stands for text with the character NUL.
fn has_nul(text: &str) -> bool {
    // Few have any escape at all.
    text.as_bytes().contains(&b'%') && text.contains("%00")
}

/// The request took longer than the limit.
pub(crate) fn too_slow() -> Reject {
    Reject::new(
        Code::RequestTimeout,
        "the request took too long; it may or may not have happened",
    )
    .retry_after(crate::problem::RETRY_SOON)
}

/// What every answer says to browsers and caches.
fn guarded(headers: &mut HeaderMap, api: bool, encrypted: bool) {
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    if api {
        headers
            .entry(header::CACHE_CONTROL)
            .or_insert(HeaderValue::from_static("no-store"));
    }
    if encrypted {
        headers.insert(
            header::STRICT_TRANSPORT_SECURITY,
            HeaderValue::from_static("max-age=31536000"),
        );
    }
}

fn request_id(headers: &HeaderMap) -> HeaderValue {
    let given = headers
        .get(&REQUEST_ID)
        .filter(|id| (1..=MAX_REQUEST_ID_BYTES).contains(&id.len()) && id.to_str().is_ok());
    given.cloned().unwrap_or_else(|| {
        let text = fresh_id()
            .hyphenated()
            .encode_lower(&mut Uuid::encode_buffer())
            .to_owned();
        HeaderValue::try_from(text).expect("hexadecimal digits and hyphens")
    })
}

/// Random for this process and counted within it: fresh randomness would be a system call per request.
fn fresh_id() -> Uuid {
    static PROCESS: LazyLock<[u8; 8]> =
        LazyLock::new(|| Uuid::new_v4().as_u64_pair().1.to_be_bytes());
    static LAST: AtomicU64 = AtomicU64::new(0);
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&*PROCESS);
    bytes[8..].copy_from_slice(&LAST.fetch_add(1, Ordering::Relaxed).to_be_bytes());
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}

/// Writes a problem out, with the id of its request. Errors of the framework become problems too.
fn written(mut response: Response, id: &HeaderValue) -> Response {
    let status = response.status();
    if !status.is_client_error() && !status.is_server_error() {
        return response;
    }
    let reject = response.extensions_mut().remove::<Reject>();
    let mut problem = reject.unwrap_or_else(|| of_status(status)).into_problem();
    id.to_str()
        .unwrap_or_default()
        .clone_into(&mut problem.request_id);
    let body = serde_json::to_vec(&problem).unwrap_or_default();
    let status = StatusCode::from_u16(problem.status).unwrap_or(status);
    let mut headers = std::mem::take(response.headers_mut());
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
    headers.remove(header::CONTENT_LENGTH);
    let mut response = (status, body).into_response();
    headers.extend(
        response
            .headers()
            .iter()
            .filter(|(name, _)| *name == header::CONTENT_LENGTH)
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect::<HeaderMap>(),
    );
    *response.headers_mut() = headers;
    response
}

/// Paths are accepted with and without a trailing slash: takes it off before the router looks.
pub(crate) fn without_trailing_slash<B>(mut request: http::Request<B>) -> http::Request<B> {
    let path = request.uri().path();
    if path.len() > 1 && path.ends_with('/') {
        let trimmed = path.trim_end_matches('/');
        let trimmed = if trimmed.is_empty() { "/" } else { trimmed };
        let target = match request.uri().query() {
            Some(query) => format!("{trimmed}?{query}"),
            None => trimmed.to_owned(),
        };
        let mut parts = request.uri().clone().into_parts();
        parts.path_and_query = target.parse().ok();
        if let Ok(uri) = Uri::from_parts(parts) {
            *request.uri_mut() = uri;
        }
    }
    request
}
