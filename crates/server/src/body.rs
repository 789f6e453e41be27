//! Bodies: JSON in and out, and bytes in.

use std::{marker::PhantomData, sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes},
    extract::{FromRequest, Request},
    response::{IntoResponse, Response},
};
use http::{HeaderMap, HeaderValue, header};
use http_body_util::{BodyExt, Limited};
use leasehold_api::Code;
use serde::{
    Serialize,
    de::{DeserializeOwned, DeserializeSeed},
};
use tokio::time::timeout;

use crate::{Limits, Reject, along::Along, frame::too_slow};

/// What a call to the kernel's own interface may always hold: a transaction has several records of
/// 256 KiB each.
pub(crate) const KERNEL_BODY_BYTES: usize = 8 * 1024 * 1024;

/// How much room an answer begins with: enough for one lease.
const USUAL_BYTES: usize = 768;

/// How much of a body that is too large is read all the same: most senders look for an answer only
/// after they have sent everything, and would see a closed connection instead of the refusal.
const DRAINED_BYTES: usize = 16 * 1024 * 1024;

/// What the body of a request may be.
#[derive(Clone, Copy)]
struct BodyLimit {
    /// How large.
    bytes: usize,
    /// How long it may take to arrive: one that trickles must not hold a permit for ever.
    time: Duration,
}

impl BodyLimit {
    /// That of a request; one that went past the frame gets the default.
    fn of(request: &Request) -> Self {
        let of = |limits: &Limits| Self {
            bytes: limits.body_bytes,
            time: limits.request_timeout(),
        };
        let along = request.extensions().get::<Arc<Along>>();
        along.map_or_else(
            || of(&Limits::default()),
            |along| of(&along.app.parts().limits),
        )
    }
}

/// A JSON object as the body of a request. Wrong fields are named.
pub struct JsonBody<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = Reject;

    async fn from_request(request: Request, _: &S) -> Result<Self, Reject> {
        let limit = BodyLimit::of(&request);
        let bytes = read(request, limit).await?;
        leasehold_api::parse(&bytes)
            .map(Self)
            .map_err(|error| Reject::invalid(vec![error]))
    }
}

/// Any JSON value as the body of a call to the kernel's own interface, not parsed yet.
pub(crate) struct KernelBody(Bytes);

impl KernelBody {
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, Reject> {
        self.parse_as(PhantomData::<T>)
    }

    /// Parsed as `seed` says.
    pub fn parse_as<'de, S: DeserializeSeed<'de>>(&'de self, seed: S) -> Result<S::Value, Reject> {
        leasehold_api::parse_as(&self.0, seed).map_err(|error| Reject::invalid(vec![error]))
    }
}

impl<S: Send + Sync> FromRequest<S> for KernelBody {
    type Rejection = Reject;

    async fn from_request(request: Request, _: &S) -> Result<Self, Reject> {
        let limit = BodyLimit::of(&request);
        let limit = BodyLimit {
            bytes: limit.bytes.max(KERNEL_BODY_BYTES),
            ..limit
        };
        read(request, limit).await.map(Self)
    }
}

/// Any bytes as the body of a request: at most so many.
pub(crate) struct RawBody<const MOST: usize>(pub Bytes);

impl<const MOST: usize, S: Send + Sync> FromRequest<S> for RawBody<MOST> {
    type Rejection = Reject;

    async fn from_request(request: Request, _: &S) -> Result<Self, Reject> {
        let limit = BodyLimit::of(&request);
        let limit = BodyLimit {
            bytes: limit.bytes.min(MOST),
            ..limit
        };
        read_any(request, limit).await.map(Self)
    }
}

async fn read(request: Request, limit: BodyLimit) -> Result<Bytes, Reject> {
    let json = is_json(request.headers());
    let bytes = read_any(request, limit).await?;
    if !json && !bytes.is_empty() {
        return Err(Reject::new(
            Code::UnsupportedMediaType,
            "the body must be application/json",
        ));
    }
    Ok(bytes)
}

async fn read_any(request: Request, limit: BodyLimit) -> Result<Bytes, Reject> {
    let too_large = || {
        Reject::new(
            Code::PayloadTooLarge,
            format!("a body has at most {} bytes", limit.bytes),
        )
    };
    let (head, mut body) = request.into_parts();
    let announced = head
        .headers
        .get(header::CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if announced.is_some_and(|length| length > limit.bytes) {
        // A client that asks first whether to send it gets the refusal instead.
        if !head.headers.contains_key(header::EXPECT) {
            drain(&mut body, limit.time).await;
        }
        return Err(too_large());
    }
    let whole = Limited::new(&mut body, limit.bytes).collect();
    // Reading fails when the body is too long or the caller went away; the latter sees no answer.
    let Ok(whole) = timeout(limit.time, whole).await.map_err(|_| too_slow())? else {
        drain(&mut body, limit.time).await;
        return Err(too_large());
    };
    let bytes = whole.to_bytes();
    // Only a request that is whole takes a permit from others.
    if let Some(along) = head.extensions.get::<Arc<Along>>() {
        along.admit()?;
    }
    Ok(bytes)
}

/// Takes the rest of a body off the connection, within bounds.
async fn drain(body: &mut Body, time: Duration) {
    let rest = async {
        let mut left = DRAINED_BYTES;
        while let Some(Ok(frame)) = body.frame().await {
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            left = match left.checked_sub(bytes) {
                Some(left) => left,
                None => break,
            };
        }
    };
    // What did not arrive in time is left to the connection's end.
    let _ = timeout(time, rest).await;
}

fn is_json(headers: &HeaderMap) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next())
        .map(|media| media.trim().as_bytes())
        .is_some_and(|media| {
            let suffix = media.last_chunk::<5>();
            media.eq_ignore_ascii_case(b"application/json")
                || suffix.is_some_and(|it| it.eq_ignore_ascii_case(b"+json"))
        })
}

/// A JSON answer.
pub struct Json<T>(pub T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        let mut bytes = Vec::with_capacity(USUAL_BYTES);
        match serde_json::to_writer(&mut bytes, &self.0) {
            Ok(()) => {
                let mut response = Response::new(Body::from(bytes));
                let json = HeaderValue::from_static("application/json");
                response.headers_mut().insert(header::CONTENT_TYPE, json);
                response
            }
            Err(error) => {
                tracing::error!(%error, "an answer could not be written as JSON");
                Reject::new(Code::InternalError, "the answer could not be written").into_response()
            }
        }
    }
}
