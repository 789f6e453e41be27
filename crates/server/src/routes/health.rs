//! Is it alive, is it ready, and what does it count?

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, header};
use leasehold_api::{exposition, paths};
use serde::Serialize;
use tokio::time::timeout;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{App, Json, Reject, frame::too_slow};

pub(super) fn router() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(healthz))
        .routes(routes!(health))
        .routes(routes!(readyz))
        .routes(routes!(metrics))
}

/// How the server is.
#[derive(Serialize, ToSchema)]
struct Health {
    status: &'static str,
    /// The version that runs.
    version: &'static str,
    /// The store behind it.
    #[serde(skip_serializing_if = "Option::is_none")]
    store: Option<String>,
    /// Whether the broker is reached, where one is configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    broker_connected: Option<bool>,
}

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The process is alive.
#[utoipa::path(get, path = paths::HEALTHZ, tag = "operations", responses((status = 200, body = Health)))]
async fn healthz() -> Json<Health> {
    Json(Health {
        status: "ok",
        version: VERSION,
        store: None,
        broker_connected: None,
    })
}

/// The process is alive, for clients of the first control plane.
#[utoipa::path(get, path = paths::HEALTH, tag = "operations", responses((status = 200, body = Health)))]
async fn health() -> Json<Health> {
    healthz().await
}

/// The store can be reached and the server is not stopping.
#[utoipa::path(get, path = paths::READYZ, tag = "operations",
    responses((status = 200, body = Health), (status = 503, description = "Not ready")))]
async fn readyz(State(app): State<App>) -> Result<Json<Health>, Reject> {
    if app.closing().is_cancelled() {
        return Err(Reject::from(lease::Error::Unavailable(
            "the server is stopping".into(),
        )));
    }
    let limit = app.parts().limits.request_timeout();
    timeout(limit, app.authority().now())
        .await
        .map_err(|_| too_slow())??;
    let capabilities = app.authority().capabilities();
    if capabilities.degraded {
        return Err(Reject::from(lease::Error::Unavailable(
            "the store takes no changes".into(),
        )));
    }
    Ok(Json(Health {
        status: "ready",
        version: VERSION,
        store: Some(capabilities.store),
        broker_connected: app.parts().outbox.is_connected(),
    }))
}

/// Metrics, in the text format of Prometheus or, if `Accept` asks for it, as OpenMetrics.
#[utoipa::path(get, path = paths::METRICS, tag = "operations",
    responses((status = 200, body = String, content_type = "text/plain")))]
async fn metrics(State(app): State<App>, headers: HeaderMap) -> Response {
    let accept = headers
        .get(header::ACCEPT)
        .and_then(|accept| accept.to_str().ok());
    let (media, text) = exposition::answer(accept, app.metrics().text());
    ([(header::CONTENT_TYPE, media)], text).into_response()
}
