//! What an instance reports about itself over HTTP: its figures, and the fleet as it sees it. It only
//! reports; nothing can be changed here.

use std::{io, net::SocketAddr, sync::Arc};

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use leasehold_api::{NodeList, paths};
use tokio::time::timeout;

use super::Program;
use crate::surface::{self, Answer, PATIENCE, plain};

/// Serves until it is dropped.
pub(super) async fn serve(program: &Arc<Program>, address: SocketAddr) -> io::Result<()> {
    let listener = surface::bind(address).await?;
    tracing::info!(address = %listener.local_addr()?, "metrics are served");
    let program = program.clone();
    surface::serve(listener, move |request| {
        let program = program.clone();
        async move { answer(&program, &request).await }
    })
    .await;
    Ok(())
}

async fn answer(program: &Program, request: &Request<Bytes>) -> Answer {
    if request.method() != Method::GET {
        return plain(
            StatusCode::METHOD_NOT_ALLOWED,
            "only GET is answered here\n",
        );
    }
    match request.uri().path().trim_end_matches('/') {
        "" | "/metrics" => surface::metrics(request, &[program.metrics.registry()]),
        paths::NODES => nodes(program).await,
        _ => plain(
            StatusCode::NOT_FOUND,
            "here are /metrics and /api/v1/nodes\n",
        ),
    }
}

async fn nodes(program: &Program) -> Answer {
    let coordinator = &program.coordinator;
    // The store may take as long to describe the fleet.
    let fleet = match timeout(PATIENCE, coordinator.fleet()).await {
        Ok(Ok(fleet)) => fleet,
        Ok(Err(error)) => {
            tracing::info!(%error, "the fleet cannot be shown");
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
    surface::json(StatusCode::OK, &list)
}
