//! The small HTTP surface of an agent: bounded in callers, time and size.

use std::{convert::Infallible, io, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use leasehold_api::exposition;
use prometheus_client::registry::Registry;
use tokio::{net::TcpListener, sync::Semaphore};

use crate::process;

/// How long a caller may take to send its request.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// How many callers are served at once.
const CALLERS: usize = 64;
/// The largest body that is read: more than the largest shard with its zones.
const MAX_BODY_BYTES: usize = 16 * 1024 * 1024;

pub(crate) type Answer = Response<Full<Bytes>>;

/// Binds an address, with it in the error.
pub(crate) async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .map_err(|error| io::Error::new(error.kind(), format!("{address}: {error}")))
}

/// Serves until it is dropped.
pub(crate) async fn serve<F>(
    listener: TcpListener,
    answer: impl Fn(Request<Bytes>) -> F + Send + Sync + 'static,
) where
    F: Future<Output = Answer> + Send + 'static,
{
    let answer = Arc::new(answer);
    let places = Arc::new(Semaphore::new(CALLERS));
    loop {
        // Never closed.
        let Ok(place) = places.clone().acquire_owned().await else {
            return;
        };
        let Ok((stream, _)) = listener.accept().await else {
            // No descriptor left, for instance: it passes.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let answer = answer.clone();
        tokio::spawn(async move {
            let service = service_fn(|request: Request<hyper::body::Incoming>| {
                let answer = answer.clone();
                async move {
                    let (head, body) = request.into_parts();
                    let body = Limited::new(body, MAX_BODY_BYTES).collect();
                    let answered = match tokio::time::timeout(PATIENCE, body).await {
                        Ok(Ok(body)) => answer(Request::from_parts(head, body.to_bytes())).await,
                        Ok(Err(_)) => plain(StatusCode::PAYLOAD_TOO_LARGE, "too large\n"),
                        Err(_) => plain(StatusCode::REQUEST_TIMEOUT, "too slow\n"),
                    };
                    Ok::<_, Infallible>(answered)
                }
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(PATIENCE)
                .serve_connection(TokioIo::new(stream), service);
            // Whoever asked may be gone.
            let _ = connection.await;
            drop(place);
        });
    }
}

/// The figures of registries and of this process, in the format that the caller asks for.
pub(crate) fn metrics(request: &Request<Bytes>, registries: &[&Registry]) -> Answer {
    let accept = request
        .headers()
        .get(header::ACCEPT)
        .and_then(|accept| accept.to_str().ok());
    let (media, text) = exposition::answer(accept, process::text(registries));
    with(StatusCode::OK, media, text)
}

/// Serves `/metrics` and `/healthz` until it is dropped: for an agent that serves nothing else.
pub async fn serve_metrics(address: SocketAddr, registry: Registry) -> io::Result<()> {
    let listener = bind(address).await?;
    tracing::info!(address = %listener.local_addr()?, "metrics are served");
    let registry = Arc::new(registry);
    serve(listener, move |request| {
        let registry = registry.clone();
        async move {
            match request.uri().path().trim_end_matches('/') {
                "" | "/metrics" => metrics(&request, &[&registry]),
                "/healthz" => plain(StatusCode::OK, "ok\n"),
                _ => plain(StatusCode::NOT_FOUND, "here are /metrics and /healthz\n"),
            }
        }
    })
    .await;
    Ok(())
}

/// A value as JSON.
pub(crate) fn json(status: StatusCode, value: &impl serde::Serialize) -> Answer {
    match serde_json::to_string(value) {
        Ok(text) => with(status, "application/json", text),
        Err(_) => plain(
            StatusCode::INTERNAL_SERVER_ERROR,
            "not to be written down\n",
        ),
    }
}

/// A sentence for people.
pub(crate) fn plain(status: StatusCode, text: impl Into<String>) -> Answer {
    with(status, "text/plain; charset=utf-8", text.into())
}

fn with(status: StatusCode, media: &'static str, text: String) -> Answer {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    let media = HeaderValue::from_static(media);
    response.headers_mut().insert(header::CONTENT_TYPE, media);
    response
}
