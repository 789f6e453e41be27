//! Sends one request and says, when that fails, whether it was sent.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper_rustls::HttpsConnector;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};

use crate::{Error, Trust};

/// How long a connection may take to be made. Shorter than a call's limit, so that a server that is
/// not there is known as such, and not as one that did not answer.
const CONNECT_LIMIT: Duration = Duration::from_millis(700);
/// Idle connections are closed before servers and proxies usually do it, which would race with a request.
const IDLE_LIMIT: Duration = Duration::from_secs(20);

/// The body of an answer.
pub(crate) type Body = UnsyncBoxBody<Bytes, BrokenOff>;

/// An answer that broke off in the middle.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct BrokenOff(String);

/// A request that failed.
pub(crate) struct Failure {
    /// Whether any part of it may have reached the server.
    pub sent: bool,
    pub text: String,
}

/// Where requests go: over TCP, with TLS where the address says so.
pub(crate) struct Transport(Client<HttpsConnector<HttpConnector>, Full<Bytes>>);

impl Transport {
    pub fn new(trust: &Trust) -> Result<Self, Error> {
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(IDLE_LIMIT)
            .pool_timer(TokioTimer::new())
            .build(trust.connector(CONNECT_LIMIT)?);
        Ok(Self(client))
    }

    pub async fn send(&self, request: Request<Full<Bytes>>) -> Result<Response<Body>, Failure> {
        match self.0.request(request).await {
            Ok(response) => Ok(response.map(|body| {
                body.map_err(|error| BrokenOff(chain(&error)))
                    .boxed_unsync()
            })),
            Err(error) => Err(Failure {
                sent: !error.is_connect(),
                text: chain(&error),
            }),
        }
    }
}

/// An error and what caused it, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
