//! What an instance tells about itself over HTTP: its figures, and the fleet as it sees it. It only
//! tells; nothing can be changed here.

use std::{convert::Infallible, io, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use leasehold_api::{NodeList, paths};
use tokio::{net::TcpListener, sync::Semaphore, time::timeout};

use super::Program;

/// How long a caller may take to send its request, and the store to describe the fleet.
const PATIENCE: Duration = Duration::from_secs(5);
/// How many callers are served at once: a scraper or two, and some people.
const CALLERS: usize = 32;

/// Serves until it is dropped.
pub(super) async fn serve(program: &Arc<Program>, address: SocketAddr) -> io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    tracing::info!(address = %listener.local_addr()?, "metrics are served");
    let places = Arc::new(Semaphore::new(CALLERS));
    loop {
        // Never closed.
        let Ok(place) = places.clone().acquire_owned().await else {
            return Ok(());
        };
        let Ok((stream, _)) = listener.accept().await else {
            // No descriptor left, for instance: it passes.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let program = program.clone();
        tokio::spawn(async move {
            let service = service_fn(|request| {
                let program = program.clone();
                async move { Ok::<_, Infallible>(answer(&program, &request).await) }
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

async fn answer(program: &Program, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    if request.method() != Method::GET {
        return plain(
            StatusCode::METHOD_NOT_ALLOWED,
            "only GET is answered here\n",
        );
    }
    match request.uri().path().trim_end_matches('/') {
        "" | "/metrics" => {
            let media = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            with(StatusCode::OK, media, program.metrics.text())
        }
        paths::NODES => nodes(program).await,
        _ => plain(
            StatusCode::NOT_FOUND,
            "here are /metrics and /api/v1/nodes\n",
        ),
    }
}

async fn nodes(program: &Program) -> Response<Full<Bytes>> {
    let coordinator = &program.coordinator;
    let fleet = match timeout(PATIENCE, coordinator.fleet()).await {
        Ok(Ok(fleet)) => fleet,
        Ok(Err(error)) => {
            tracing::warn!(%error, "the fleet cannot be shown");
            return plain(StatusCode::SERVICE_UNAVAILABLE, "the store cannot say\n");
        }
        Err(_) => {
            return plain(
                StatusCode::SERVICE_UNAVAILABLE,
                "the store does not answer\n",
            );
        }
    };
    let mut list = NodeList::from(fleet);
    list.instance = Some(coordinator.instance_id().to_string());
    match serde_json::to_string(&list) {
        Ok(text) => with(StatusCode::OK, "application/json", text),
        Err(_) => plain(
            StatusCode::INTERNAL_SERVER_ERROR,
            "not to be written down\n",
        ),
    }
}

fn plain(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    with(status, "text/plain; charset=utf-8", text.to_owned())
}

fn with(status: StatusCode, media: &'static str, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    let media = HeaderValue::from_static(media);
    response.headers_mut().insert(header::CONTENT_TYPE, media);
    response
}
