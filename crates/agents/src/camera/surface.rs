//! What the worker serves on the loopback interface.

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use leasehold_api::worker::{ShardConfig, worker_paths};
use tokio::time::timeout;

use super::worker::{Refused, Worker};
use crate::listen::{AsyncHandler, OPENMETRICS, PATIENCE, plain, with};

/// More than the largest shard with its zones.
const MAX_BODY_BYTES: usize = 16 * 1024 * 1024;

pub(super) struct Surface(pub Arc<Worker>);

impl AsyncHandler for Surface {
    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let worker = &self.0;
        let path = request.uri().path().trim_end_matches('/').to_owned();
        match (request.method(), path.as_str()) {
            (&Method::GET, worker_paths::HEALTH) => plain(StatusCode::OK, "ok\n"),
            (&Method::GET, worker_paths::READY) => {
                let ready = worker.ready();
                let status = if ready.ready {
                    StatusCode::OK
                } else {
                    StatusCode::SERVICE_UNAVAILABLE
                };
                let text = serde_json::to_string(&ready).unwrap_or_default();
                with(status, "application/json", text)
            }
            (&Method::GET, worker_paths::METRICS) => {
                with(StatusCode::OK, OPENMETRICS, worker.metrics())
            }
            (&Method::POST, worker_paths::CAMERAS) => self.cameras(request).await,
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
}

impl Surface {
    async fn cameras(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let body = Limited::new(request.into_body(), MAX_BODY_BYTES).collect();
        let Ok(Ok(body)) = timeout(PATIENCE, body).await else {
            return plain(StatusCode::BAD_REQUEST, "the body cannot be read\n");
        };
        let body = body.to_bytes();
        let text = String::from_utf8_lossy(&body);
        let config: ShardConfig = match super::parse(&text) {
            Ok(config) => config,
            Err(error) => return plain(StatusCode::BAD_REQUEST, format!("{error}\n")),
        };
        // On its own, so that a caller who hangs up does not leave half of a change behind.
        let worker = self.0.clone();
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
}
