//! The page's login: a token in, an opaque cookie out.

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, StatusCode, header};
use leasehold_api::paths;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    App, Reject,
    auth::{Authenticated, cookie},
};

pub(super) fn router() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(log_in, log_out))
}

/// Log in: the request's bearer token becomes a cookie for the page.
#[utoipa::path(post, path = paths::SESSION, tag = "auth", security(("bearer" = [])),
    responses((status = 204, description = "The cookie is set")))]
async fn log_in(
    Authenticated(caller): Authenticated,
    State(app): State<App>,
) -> Result<Response, Reject> {
    let parts = app.parts();
    let (secret, seconds) = parts.credentials.log_in(&caller).await?;
    let cookie = cookie::set(&secret, seconds, parts.encrypted);
    Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response())
}

/// Log out: the cookie is void. Without one, nothing happens.
#[utoipa::path(delete, path = paths::SESSION, tag = "auth",
    responses((status = 204, description = "The cookie is removed")))]
async fn log_out(State(app): State<App>, headers: HeaderMap) -> Result<Response, Reject> {
    let parts = app.parts();
    if let Some(secret) = cookie::from_headers(&headers) {
        parts.credentials.log_out(secret).await?;
    }
    let cookie = cookie::set("", 0, parts.encrypted);
    Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response())
}
