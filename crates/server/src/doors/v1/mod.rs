//! The control plane, `/api/v1`: one file per resource.

mod acquire;
mod authority;
mod events;
mod fences;
mod history;
mod holders;
mod lease;
mod leases;
mod nodes;
mod renew;

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
        .merge(authority::router())
}
