//! Calls over the loopback interface: to workers, and to other managers.

use std::{io, time::Duration};

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};

/// Answers are a line or two; nobody may fill our memory.
const MAX_ANSWER_BYTES: usize = 256 * 1024;

/// Makes calls. Clones share connections.
#[derive(Clone, Debug)]
pub(super) struct Link(Client<HttpConnector, Full<Bytes>>);

impl Link {
    pub fn new() -> Self {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new())
            // Workers come and go, and small servers close what is idle.
            .pool_max_idle_per_host(0)
            .build(tcp);
        Self(client)
    }

    /// One call with everything it takes within `limit`.
    pub async fn call(
        &self,
        method: Method,
        url: &str,
        body: Option<Vec<u8>>,
        limit: Duration,
    ) -> io::Result<(StatusCode, Bytes)> {
        let request = Request::builder()
            .method(method)
            .uri(url)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body.unwrap_or_default())))
            .map_err(io::Error::other)?;
        let call = async {
            let response = self.0.request(request).await.map_err(io::Error::other)?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, MAX_ANSWER_BYTES)
                .collect()
                .await
                .map_err(io::Error::other)?;
            Ok((head.status, body.to_bytes()))
        };
        match tokio::time::timeout(limit, call).await {
            Ok(outcome) => outcome,
            Err(_) => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("nothing within {limit:?}"),
            )),
        }
    }
}
