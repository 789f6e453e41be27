//! What an instance tells about itself over HTTP: its figures, and the fleet as it sees it. It only
//! tells; nothing can be changed here.

use std::{io, net::SocketAddr, sync::Arc};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use leasehold_api::{NodeList, paths};
use tokio::{net::TcpListener, time::timeout};

use super::Program;
use crate::listen::{self, AsyncHandler, OPENMETRICS, PATIENCE, plain, with};

/// Serves until it is dropped.
pub(super) async fn serve(program: &Arc<Program>, address: SocketAddr) -> io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    tracing::info!(address = %listener.local_addr()?, "metrics are served");
    listen::serve(listener, Surface(program.clone())).await;
    Ok(())
}

struct Surface(Arc<Program>);

impl AsyncHandler for Surface {
    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        if request.method() != Method::GET {
            return plain(
                StatusCode::METHOD_NOT_ALLOWED,
                "only GET is answered here\n",
            );
        }
        match request.uri().path().trim_end_matches('/') {
            "" | "/metrics" => with(StatusCode::OK, OPENMETRICS, self.0.metrics.text()),
            paths::NODES => nodes(&self.0).await,
            _ => plain(
                StatusCode::NOT_FOUND,
                "here are /metrics and /api/v1/nodes\n",
            ),
        }
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
