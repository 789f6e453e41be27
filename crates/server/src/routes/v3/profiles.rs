//! What a client may ask for.

use std::sync::Arc;

use axum::Extension;
use leasehold_api::sessions::{PROFILES, ProfileList};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::Shared;
use crate::{
    App, Json,
    auth::{Auth, V3Read},
};

pub(super) fn router() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(profiles))
}

/// The profiles that may be asked for, and how long a session lives without a heartbeat.
#[utoipa::path(get, path = PROFILES, tag = "sessions", security(("bearer" = ["v3:read"])),
    responses((status = 200, body = ProfileList, description = "What is configured")))]
async fn profiles(_: Auth<V3Read>, Extension(shared): Extension<Arc<Shared>>) -> Json<ProfileList> {
    Json(ProfileList {
        profiles: shared.options.profiles.iter().cloned().collect(),
        lease_ttl: shared.options.lease_ttl_ms / 1000,
        heartbeat_interval: shared.options.heartbeat_seconds(),
    })
}
