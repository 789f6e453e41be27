//! The kernel's own interface: what makes this server an authority for another process. The verbs and
//! their values are defined only in the kernel.

use ::lease::{Command, Named, Query, Watching};
use axum::{
    extract::{Path, State},
    response::{IntoResponse, Response},
};
use leasehold_api::{
    Code,
    authority::{CAPABILITIES, WATCH},
    paths,
};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    App, Json, Reject,
    auth::Authenticated,
    body::KernelBody,
    ops,
    streams::{self, Format},
};

pub(super) fn router() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(call))
}

/// Call a method of the authority with the kernel's own values.
#[utoipa::path(post, path = paths::AUTHORITY, tag = "authority", security(("bearer" = ["leases:read"])),
    params(("method" = String, Path, description = "acquire, renew, keep, release, revoke, depart, handoff, commit, lease, lease_by_id, leases, check, record, records, events, seals, now, capabilities or watch")),
    request_body(content = Option<serde_json::Value>, content_type = "application/json"),
    responses((status = 200, body = Option<serde_json::Value>), (status = 404, description = "No such method")))]
async fn call(
    Authenticated(caller): Authenticated,
    State(app): State<App>,
    Path(verb): Path<String>,
    request: axum::extract::Request,
) -> Result<Response, Reject> {
    // The scope comes first: a body that nobody may send is not even read.
    let needs = ops::Needs::of(&verb)
        .ok_or_else(|| Reject::new(Code::NotFound, "the authority has no such method"))?;
    needs.check(&caller)?;
    let body = <KernelBody as axum::extract::FromRequest<App>>::from_request(request, &app).await?;
    Ok(match verb.as_str() {
        CAPABILITIES => Json(app.authority().capabilities()).into_response(),
        WATCH => {
            let watching = body.parse::<Watching>()?;
            streams::events(&app, caller, watching, Format::Kernel)
                .await?
                .into_response()
        }
        verb if Command::NAMES.contains(&verb) => {
            let command = body.parse_as(Named::<Command>::new(verb))?;
            Json(ops::decide(&app, &caller, command).await?).into_response()
        }
        verb => {
            let query = body.parse_as(Named::<Query>::new(verb))?;
            Json(ops::look(&app, &caller, query).await?).into_response()
        }
    })
}
