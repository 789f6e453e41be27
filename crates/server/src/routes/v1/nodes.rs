//! Who polls what, and what nobody polls.

use ::lease::{
    Lease, LeaseQuery, Status,
    polling::{FleetView, NODE, POLL, TARGET, TargetState},
};
use axum::extract::State;
use leasehold_api::{NodeList, paths};
use leasehold_client::documents::Pages;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::leases::tenant;
use crate::{
    App, Json, Reject,
    auth::{Auth, LeasesRead},
};

/// How much is read from the store at a time.
const PAGE: usize = 1_000;

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
    let presence = leases(&app, NODE, tenant.clone()).await?;
    let polls = leases(&app, POLL, tenant.clone()).await?;
    // Targets belong to no tenant: a caller that is bound to one sees what it owns, and no more.
    let targets = match tenant {
        Some(_) => Vec::new(),
        None => targets(&app).await?,
    };
    let now = app.authority().now().await?;
    let view = FleetView::new(now, &presence, &polls, &targets);
    Ok(Json(NodeList::from(view)))
}

async fn leases(app: &App, kind: &str, tenant: Option<String>) -> Result<Vec<Lease>, Reject> {
    let mut found: Vec<Lease> = Vec::new();
    loop {
        let query = LeaseQuery {
            kind: Some(kind.to_owned()),
            status: Some(Status::Active),
            tenant: tenant.clone(),
            after: found.last().map(|lease| lease.key.clone()),
            limit: PAGE,
            ..LeaseQuery::default()
        };
        let page = app.authority().leases(query).await?;
        let more = page.more && !page.items.is_empty();
        found.extend(page.items);
        if !more {
            return Ok(found);
        }
    }
}

/// Every target whose document makes sense.
async fn targets(app: &App) -> Result<Vec<TargetState>, Reject> {
    let mut found = Vec::new();
    let mut pages = Pages::new(app.authority(), TARGET, "");
    while let Some(page) = pages.next().await? {
        found.extend(page.iter().filter_map(|it| TargetState::of(it).ok()));
    }
    Ok(found)
}
