//! The routes. To add one, write its router and name it in [`all`]: route and specification are
//! registered in one place.

mod health;
mod page;
mod session;
mod v1;
pub mod v3;

use utoipa_axum::router::OpenApiRouter;

use crate::App;

/// Every route.
pub(crate) fn all() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .merge(health::router())
        .merge(session::router())
        .merge(v1::router())
        .merge(page::router())
}
