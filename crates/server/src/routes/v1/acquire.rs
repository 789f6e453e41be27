//! Acquiring keys.

use ::lease::{Acquired, Incarnation};
use axum::extract::State;
use leasehold_api::{AcquireRequest, CameraGrant, Form, Lease, LeaseList, paths};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    App, Json, JsonBody, Reject,
    auth::{Auth, LeasesWrite},
    ops,
    registry::admission,
};

pub(super) fn router() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(acquire))
}

/// One lease; for a camera with the lease a second time under `lease`; with `keys` a list of leases.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
enum Granted {
    Camera(Box<CameraGrant>),
    One(Box<Lease>),
    Many(LeaseList),
}

/// Acquire a key, all of several keys, any one of a pool, or a camera.
///
/// The same holder and incarnation gets the same lease again, refreshed. A caller that names no
/// incarnation gets one made up, in the answer: it is then a holder of its own. With `wait_seconds` the request
/// waits in a queue, first come first served.
#[utoipa::path(post, path = paths::ACQUIRE, tag = "leases", security(("bearer" = ["leases:write"])),
    request_body = AcquireRequest,
    responses((status = 200, body = Granted), (status = 404, description = "No such camera or runner"),
        (status = 409, description = "Somebody else holds it, the runner is at its capacity, or a version is not current")))]
async fn acquire(
    Auth(caller, _): Auth<LeasesWrite>,
    State(app): State<App>,
    JsonBody(request): JsonBody<AcquireRequest>,
) -> Result<Json<Granted>, Reject> {
    let mut asked = request.check().map_err(Reject::invalid)?;
    if request.incarnation.is_none() && asked.form != Form::Camera {
        // Two callers with one name are two holders, unless they say which one they are. Not from the system's
        // randomness, which is a system call.
        let made_up = format!("{:032x}", rand::random::<u128>());
        asked.acquire.holder.incarnation = Incarnation::new(made_up)?;
    }
    let acquired = if asked.form == Form::Camera {
        // Boxed: what is no camera does not carry the room for it along.
        Box::pin(admission::acquire(&app, &caller, &request, asked.acquire)).await?
    } else {
        admission::acquire_keys(&app, &caller, asked.acquire).await?
    };
    let leases = match acquired {
        Acquired::Granted { leases, .. } => leases,
        Acquired::Refused(refusal) => return Err(ops::refused(&caller, &refusal)),
    };
    if let [lease] = leases.as_slice() {
        app.parts().recent.note(lease);
    }
    let mut leases: Vec<Lease> = leases.iter().map(Lease::from).collect();
    let granted = match asked.form {
        Form::Keys => Granted::Many(LeaseList {
            leases,
            next_cursor: None,
        }),
        Form::Camera => {
            let lease = leases.pop().ok_or_else(Reject::no_lease)?;
            Granted::Camera(Box::new(CameraGrant::from(lease)))
        }
        // One key or one slot of a pool: one lease.
        Form::Key | Form::Pool => {
            Granted::One(Box::new(leases.pop().ok_or_else(Reject::no_lease)?))
        }
    };
    Ok(Json(granted))
}
