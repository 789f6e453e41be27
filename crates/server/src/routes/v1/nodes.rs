//! Who polls what, and what nobody polls.

use ::lease::{
    LeaseQuery,
    polling::{FleetView, NODE, POLL, TARGET, TargetState},
};
use axum::extract::State;
use leasehold_api::{NodeList, paths};
use leasehold_client::pages::Pages;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::leases::tenant;
use crate::{
    App, Json, Reject,
    auth::{Auth, LeasesRead},
};

pub(super) fn router() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list))
}

/// Who polls what: the live instances with what they own, and the targets that nobody owns.
#[utoipa::path(get, path = paths::NODES, tag = "nodes", security(("bearer" = ["leases:read"])),
    responses((status = 200, body = NodeList)))]
async fn list(
    Auth(caller, _): Auth<LeasesRead>,
    State(app): State<App>,
) -> Result<Json<NodeList>, Reject> {
    let tenant = tenant(&caller, None)?;
    let authority = app.authority();
    let leases = async |kind| {
        let query = LeaseQuery {
            tenant: tenant.clone(),
            ..LeaseQuery::active(kind)
        };
        Pages::new(authority, query).all().await
    };
    let presence = leases(NODE).await?;
    let polls = leases(POLL).await?;
    // Targets belong to no tenant: a caller that is bound to one sees what it owns, and no more.
    let targets = match tenant {
        Some(_) => Vec::new(),
        None => Pages::records(authority, TARGET, "").all().await?,
    };
    let sensible = targets.iter().filter_map(|it| TargetState::of(it).ok());
    let targets: Vec<TargetState> = sensible.collect();
    let now = authority.now().await?;
    let view = FleetView::new(now, &presence, &polls, &targets);
    Ok(Json(NodeList::from(view)))
}
