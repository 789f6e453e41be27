//! The page's login: a token in, an opaque cookie out.

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, StatusCode, header};
use leasehold_api::paths;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    App,
    auth::{Authenticated, cookie},
};

pub(super) fn router() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(log_in, log_out))
}

/// Log in: the request's bearer token becomes a cookie for the page.
#[utoipa::path(post, path = paths::SESSION, tag = "auth", security(("bearer" = [])),
    responses((status = 204, description = "The cookie is set")))]
async fn log_in(Authenticated(caller): Authenticated, State(app): State<App>) -> Response {
    let parts = app.parts();
    let cookie = parts
        .sessions
        .open(caller.token_id, app.clock().boot(), parts.encrypted);
    (StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response()
}

/// Log out: the cookie is void. Without one, nothing happens.
#[utoipa::path(delete, path = paths::SESSION, tag = "auth",
    responses((status = 204, description = "The cookie is removed")))]
async fn log_out(State(app): State<App>, headers: HeaderMap) -> Response {
    let parts = app.parts();
    let cookie = parts
        .sessions
        .close(cookie::from_headers(&headers), parts.encrypted);
    (StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response()
}
