//! The newest still of a camera, sent by its holder.

use axum::{
    extract::{Path, State},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::{HeaderName, StatusCode, header};
use lease::{Key, Token, Verdict, registry::CAMERA};
use leasehold_api::{Code, Success, Time, paths};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    App, Json, Query, Reject,
    auth::{Auth, RunnersRead, RunnersWrite},
    body::RawBody,
    ops,
    pictures::Picture,
    registry::cameras,
};
/// The size of the camera's own picture, `1920x1080`.
const SIZE: HeaderName = HeaderName::from_static("picture-size");
/// When the still was taken in.
const AT: HeaderName = HeaderName::from_static("picture-at");

pub(super) fn router() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(picture, keep_picture))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Sent {
    /// The fencing token of the camera's lease.
    token: u64,
    /// The width of the camera's own picture in pixels, in which zones count: 1 to 16384. The still may be
    /// smaller.
    width: u32,
    /// Its height: 1 to 16384.
    height: u32,
}

/// A still: JPEG, PNG or WebP.
#[derive(ToSchema)]
#[schema(value_type = String, format = Binary)]
#[expect(dead_code, reason = "describes bytes in the specification")]
struct Still(Vec<u8>);

/// Show the newest still of a camera that this server was sent. `picture-size` is the size of the camera's own
/// picture, `picture-at` when the still came.
#[utoipa::path(get, path = paths::CAMERA_PICTURE, tag = "cameras", security(("bearer" = ["runners:read"])),
    params(("camera_uuid" = String, Path)),
    responses((status = 200, description = "The still", content((Still = "application/octet-stream"),
            (Still = "image/jpeg"), (Still = "image/png"), (Still = "image/webp"))),
        (status = 204, description = "There is none here"), (status = 404, description = "Unknown")))]
async fn picture(
    Auth(caller, _): Auth<RunnersRead>,
    State(app): State<App>,
    Path(uuid): Path<String>,
) -> Result<Response, Reject> {
    let found = cameras::find(&app, &caller, &uuid).await?;
    let kept = app.parts().pictures.of(&uuid);
    // Another replica may have removed the camera of this name meanwhile, and somebody made a new one.
    let own = |it: &Picture| it.tenant_id == found.value.tenant_id && it.at >= found.created_at;
    let Some(picture) = kept.filter(own) else {
        return Ok(StatusCode::NO_CONTENT.into_response());
    };
    let (width, height) = picture.size;
    let headers = [
        (header::CONTENT_TYPE, picture.media.to_owned()),
        (SIZE, format!("{width}x{height}")),
        (AT, Time::from(picture.at).to_string()),
    ];
    Ok((headers, picture.bytes).into_response())
}

/// Send the newest still of a camera: JPEG, PNG or WebP of at most 256 KiB, under the token of the camera's
/// lease. It is kept in memory until a newer one comes.
#[utoipa::path(put, path = paths::CAMERA_PICTURE, tag = "cameras", security(("bearer" = ["runners:write"])),
    params(("camera_uuid" = String, Path), Sent),
    request_body(content = Still, content_type = "application/octet-stream"),
    responses((status = 200, body = Success), (status = 404, description = "Unknown camera or lease"),
        (status = 410, description = "The lease of this token is over"),
        (status = 413, description = "The picture is too large"),
        (status = 415, description = "Only JPEG, PNG and WebP are accepted")))]
async fn keep_picture(
    Auth(caller, _): Auth<RunnersWrite>,
    State(app): State<App>,
    Path(uuid): Path<String>,
    Query(sent): Query<Sent>,
    RawBody(bytes): RawBody<{ Picture::MAX_BYTES }>,
) -> Result<Json<Success>, Reject> {
    for (field, side) in [("width", sent.width), ("height", sent.height)] {
        if !(1..=Picture::MAX_SIDE).contains(&side) {
            return Err(Reject::field(field, "1 to 16384 pixels"));
        }
    }
    let token = Token::new(sent.token)?;
    let media = Picture::media(&bytes).ok_or_else(|| {
        Reject::new(
            Code::UnsupportedMediaType,
            "the body must be a JPEG, PNG or WebP picture",
        )
    })?;
    let camera = cameras::find(&app, &caller, &uuid).await?.value;
    let over = || {
        Reject::new(
            Code::LeaseExpired,
            "the lease of this token is over; the picture was not kept",
        )
    };
    let key = Key::new(CAMERA, &uuid)?;
    let verdicts = ops::check(&app, &caller, vec![(key, token)]).await?;
    match verdicts.first() {
        Some(Verdict::Current) => {}
        Some(Verdict::Ended | Verdict::Stale { .. }) => return Err(over()),
        Some(Verdict::Unknown) | None => return Err(Reject::no_lease()),
    }
    let picture = Picture {
        tenant_id: camera.tenant_id,
        // A copy: what arrived may be a part of a larger buffer.
        bytes: Bytes::copy_from_slice(&bytes),
        media,
        size: (sent.width, sent.height),
        token,
        at: app.authority().now().await?,
    };
    if app.parts().pictures.keep(&uuid, picture) {
        Ok(Json(Success { success: true }))
    } else {
        Err(over())
    }
}
