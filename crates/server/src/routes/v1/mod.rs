//! The control plane, `/api/v1`: one file per resource.

mod acquire;
mod authority;
mod cameras;
mod credentials;
mod deployments;
mod events;
mod fences;
mod history;
mod holders;
mod lease;
mod leases;
mod nodes;
mod overview;
mod pages;
mod pictures;
mod plan;
mod renew;
mod runners;
mod sites;
mod targets;
mod zones;

use utoipa_axum::router::OpenApiRouter;

use crate::App;

pub(super) fn router() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .merge(acquire::router())
        .merge(renew::router())
        .merge(lease::router())
        .merge(leases::router())
        .merge(history::router())
        .merge(events::router())
        .merge(fences::router())
        .merge(holders::router())
        .merge(nodes::router())
        .merge(targets::router())
        .merge(overview::router())
        .merge(runners::router())
        .merge(cameras::router())
        .merge(pictures::router())
        .merge(zones::router())
        .merge(sites::router())
        .merge(plan::router())
        .merge(deployments::router())
        .merge(credentials::router())
        .merge(authority::router())
}
