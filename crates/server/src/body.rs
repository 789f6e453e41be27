//! JSON in and out.

use std::time::Duration;

use axum::{
    body::to_bytes,
    extract::{FromRequest, Request},
    response::{IntoResponse, Response},
};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use leasehold_api::Code;
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::timeout;

use crate::{Reject, frame::too_slow};

/// The largest body of a request.
pub(crate) const MAX_BODY_BYTES: usize = 1024 * 1024;
/// The largest body of a call to the kernel's own interface: a transaction may hold several records of
/// 256 KiB each.
pub(crate) const MAX_KERNEL_BODY_BYTES: usize = 8 * 1024 * 1024;

/// How long a caller may take to send its body: one that trickles must not hold a place for ever.
const MAX_BODY_TIME: Duration = Duration::from_secs(10);

/// A JSON object as the body of a request. Wrong fields are named.
pub struct JsonBody<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = Reject;

    async fn from_request(request: Request, _: &S) -> Result<Self, Reject> {
        let bytes = read(request, MAX_BODY_BYTES).await?;
        leasehold_api::parse(&bytes)
            .map(Self)
            .map_err(|error| Reject::invalid(vec![error]))
    }
}

/// Any JSON value as the body of a call to the kernel's own interface, not parsed yet.
pub(crate) struct KernelBody(axum::body::Bytes);

impl KernelBody {
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, Reject> {
        leasehold_api::parse_value(&self.0).map_err(|error| Reject::invalid(vec![error]))
    }
}

impl<S: Send + Sync> FromRequest<S> for KernelBody {
    type Rejection = Reject;

    async fn from_request(request: Request, _: &S) -> Result<Self, Reject> {
        read(request, MAX_KERNEL_BODY_BYTES).await.map(Self)
    }
}

async fn read(request: Request, limit: usize) -> Result<axum::body::Bytes, Reject> {
    let too_large = || {
        Reject::new(
            Code::PayloadTooLarge,
            format!("a body has at most {limit} bytes"),
        )
    };
    let headers = request.headers();
    let announced = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if announced.is_some_and(|length| length > limit) {
        return Err(too_large());
    }
    let json = is_json(headers);
    // Reading fails when the body is too long or the caller went away; the latter sees no answer.
    let bytes = timeout(MAX_BODY_TIME, to_bytes(request.into_body(), limit))
        .await
        .map_err(|_| too_slow())?
        .map_err(|_| too_large())?;
    if !json && !bytes.is_empty() {
        return Err(Reject::new(
            Code::UnsupportedMediaType,
            "the body must be application/json",
        ));
    }
    Ok(bytes)
}

fn is_json(headers: &HeaderMap) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next())
        .map(|media| media.trim().to_ascii_lowercase())
        .is_some_and(|media| media == "application/json" || media.ends_with("+json"))
}

/// A JSON answer.
pub struct Json<T>(pub T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        match serde_json::to_vec(&self.0) {
            Ok(bytes) => (
                StatusCode::OK,
                [(
                    header::CONTENT_TYPE,
                    HeaderValue::from_static("application/json"),
                )],
                bytes,
            )
                .into_response(),
            Err(error) => {
                tracing::error!(%error, "an answer could not be written as JSON");
                Reject::new(Code::InternalError, "the answer could not be written").into_response()
            }
        }
    }
}
