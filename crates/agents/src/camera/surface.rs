//! What the worker serves on the loopback interface.

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use leasehold_api::worker::{ShardConfig, worker_paths};

use super::worker::{Refused, Worker};
use crate::surface::{Answer, json, metrics, plain};

/// Answers one request.
pub(super) async fn answer(worker: Arc<Worker>, request: Request<Bytes>) -> Answer {
    let path = request.uri().path().trim_end_matches('/');
    match (request.method(), path) {
        (&Method::GET, worker_paths::HEALTH) => plain(StatusCode::OK, "ok\n"),
        (&Method::GET, worker_paths::READY) => {
            let ready = worker.ready();
            let status = if ready.ready {
                StatusCode::OK
            } else {
                StatusCode::SERVICE_UNAVAILABLE
            };
            json(status, &ready)
        }
        (&Method::GET, worker_paths::METRICS) => metrics(&request, &[worker.metrics()]),
        (&Method::POST, worker_paths::CAMERAS) => cameras(worker, request.body()).await,
        (&Method::POST, worker_paths::DRAIN) => {
            worker.drain();
            plain(StatusCode::ACCEPTED, "draining\n")
        }
        (&Method::POST, worker_paths::TERMINATE) => {
            worker.terminate();
            plain(StatusCode::ACCEPTED, "terminating\n")
        }
        _ => plain(StatusCode::NOT_FOUND, "unknown path or method\n"),
    }
}

/// Answers one request on the port of the metrics.
pub(super) fn metrics_only(worker: Option<&Worker>, request: &Request<Bytes>) -> Answer {
    let path = request.uri().path().trim_end_matches('/');
    match (worker, request.method(), path) {
        (Some(worker), &Method::GET, worker_paths::METRICS) => {
            metrics(request, &[worker.metrics()])
        }
        _ => plain(StatusCode::NOT_FOUND, "only GET /metrics is served here\n"),
    }
}

async fn cameras(worker: Arc<Worker>, body: &[u8]) -> Answer {
    let text = String::from_utf8_lossy(body);
    let config: ShardConfig = match super::parse(&text) {
        Ok(config) => config,
        Err(error) => return plain(StatusCode::BAD_REQUEST, format!("{error}\n")),
    };
    // On its own, so that a caller who hangs up does not leave half of a change behind.
    let applied = tokio::spawn(async move { worker.apply(config).await }).await;
    match applied {
        Ok(Ok(())) => plain(StatusCode::ACCEPTED, "applied\n"),
        Ok(Err(refused @ Refused::Invalid(_))) => {
            plain(StatusCode::BAD_REQUEST, format!("{refused}\n"))
        }
        Ok(Err(refused)) => plain(StatusCode::CONFLICT, format!("{refused}\n")),
        Err(_) => plain(StatusCode::INTERNAL_SERVER_ERROR, "the change failed\n"),
    }
}
