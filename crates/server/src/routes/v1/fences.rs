//! Are these tokens still valid?

use axum::extract::State;
use leasehold_api::{FenceCheck, FenceVerdict, FenceVerdicts, paths};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    App, Json, JsonBody, Reject,
    auth::{Auth, LeasesRead},
    ops,
};

pub(super) fn router() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(check))
}

/// Check fencing tokens before acting on what came with them. One answer per token.
#[utoipa::path(post, path = paths::FENCES_CHECK, tag = "fences", security(("bearer" = ["leases:read"])),
    request_body = FenceCheck, responses((status = 200, body = FenceVerdicts)))]
async fn check(
    Auth(caller, _): Auth<LeasesRead>,
    State(app): State<App>,
    JsonBody(request): JsonBody<FenceCheck>,
) -> Result<Json<FenceVerdicts>, Reject> {
    let tokens = request.check().map_err(Reject::invalid)?;
    let verdicts = ops::check(&app, &caller, tokens.clone()).await?;
    Ok(Json(FenceVerdicts {
        results: tokens
            .iter()
            .zip(verdicts)
            .map(|((key, token), verdict)| FenceVerdict::new(key, *token, verdict))
            .collect(),
    }))
}
