//! Is it alive, is it ready, and what does it count?

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use http::header;
use leasehold_api::paths;
use serde::Serialize;
use tokio::time::timeout;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{App, Json, Reject, frame::too_slow};

pub(super) fn router() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(healthz))
        .routes(routes!(readyz))
        .routes(routes!(metrics))
}

/// How the server is.
#[derive(Serialize, ToSchema)]
struct Health {
    status: &'static str,
    /// The store behind it.
    #[serde(skip_serializing_if = "Option::is_none")]
    store: Option<String>,
}

/// The process is alive.
#[utoipa::path(get, path = paths::HEALTHZ, tag = "operations", responses((status = 200, body = Health)))]
async fn healthz() -> Json<Health> {
    Json(Health {
        status: "ok",
        store: None,
    })
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
        store: Some(capabilities.store),
    }))
}

/// Metrics in the text format of Prometheus.
#[utoipa::path(get, path = paths::METRICS, tag = "operations",
    responses((status = 200, body = String, content_type = "application/openmetrics-text")))]
async fn metrics(State(app): State<App>) -> Response {
    (
        [(
            header::CONTENT_TYPE,
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
        )],
        app.metrics().text(),
    )
        .into_response()
}
