//! The manager's own HTTP surface. It shows no camera's login, and takes nothing but heartbeats and stills.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use lease::Authority as _;
use leasehold_api::worker::{MAX_PICTURE_BYTES, WorkerHeartbeat};
use leasehold_client::Outcome;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::core::Core;
use crate::surface::{self, Answer, json as answer_json, plain};

/// How long the control plane may take to show that it is there.
const REACH_LIMIT: Duration = Duration::from_millis(800);

/// Serves everything but metrics.
pub(super) async fn serve(core: Arc<Core>, listener: TcpListener) {
    surface::serve(listener, move |request| {
        let core = core.clone();
        async move { answer(&core, &request).await }
    })
    .await;
}

/// Serves metrics.
pub(super) async fn serve_metrics(core: Arc<Core>, listener: TcpListener) {
    surface::serve(listener, move |request| {
        let core = core.clone();
        async move {
            match request.uri().path() {
                "/" | "/metrics" => surface::metrics(&request, &[core.context.metrics.registry()]),
                _ => plain(StatusCode::NOT_FOUND, "here is /metrics\n"),
            }
        }
    })
    .await;
}

async fn answer(core: &Core, request: &Request<Bytes>) -> Answer {
    let path = request.uri().path().trim_end_matches('/');
    let of_worker = path.strip_prefix("/workers/");
    if let Some((worker, camera)) = of_worker
        .and_then(|rest| rest.strip_suffix("/picture"))
        .and_then(|rest| rest.split_once("/cameras/"))
    {
        if request.method() != Method::POST {
            return plain(StatusCode::METHOD_NOT_ALLOWED, "POST a picture here\n");
        }
        return picture(core, worker, camera, request).await;
    }
    if let Some(worker) = of_worker.and_then(|rest| rest.strip_suffix("/heartbeat")) {
        if request.method() != Method::POST {
            return plain(StatusCode::METHOD_NOT_ALLOWED, "POST a heartbeat here\n");
        }
        return heartbeat(core, worker, request.body());
    }
    if request.method() != Method::GET {
        return plain(
            StatusCode::METHOD_NOT_ALLOWED,
            "only GET is answered here\n",
        );
    }
    match path {
        "/healthz" => answer_json(StatusCode::OK, &health(core)),
        "/ready" => ready(core),
        "/workers" => {
            let workers = core.views();
            answer_json(StatusCode::OK, &json!({"workers": workers}))
        }
        "/leases" => answer_json(StatusCode::OK, &leases(core)),
        "/reachable" => reachable(core).await,
        "/metrics" => surface::metrics(request, &[core.context.metrics.registry()]),
        _ => plain(
            StatusCode::NOT_FOUND,
            "here are /healthz, /ready, /workers, /leases and /reachable\n",
        ),
    }
}

fn heartbeat(core: &Core, worker: &str, body: &Bytes) -> Answer {
    let body = if body.is_empty() {
        Ok(WorkerHeartbeat::default())
    } else {
        serde_json::from_slice(body)
    };
    let Ok(body) = body else {
        return plain(StatusCode::BAD_REQUEST, "expected {\"stats\": {…}}\n");
    };
    if core.worker_heartbeat(worker, &body) {
        answer_json(StatusCode::OK, &json!({"success": true}))
    } else {
        plain(StatusCode::NOT_FOUND, "no such worker runs here\n")
    }
}

/// A worker's still of one of its cameras, passed on under the token of the lease that this manager has.
async fn picture(core: &Core, worker: &str, camera: &str, request: &Request<Bytes>) -> Answer {
    let query = request.uri().query().unwrap_or_default();
    let value = |name| {
        let mut pairs = query.split('&').filter_map(|it| it.split_once('='));
        pairs.find_map(|(it, value)| (it == name).then_some(value))
    };
    let side = |name| value(name).and_then(|it| it.parse::<u32>().ok());
    let token = value("token").and_then(|it| it.parse::<u64>().ok());
    let (Some(token), Some(width), Some(height)) = (token, side("width"), side("height")) else {
        let expected = "expected ?token=…&width=…&height=…\n";
        return plain(StatusCode::BAD_REQUEST, expected);
    };
    if request.body().len() > MAX_PICTURE_BYTES {
        return plain(StatusCode::PAYLOAD_TOO_LARGE, "too large\n");
    }
    let runs = core.views().iter().any(|view| {
        view.worker_id.as_deref() == Some(worker) && view.cameras.iter().any(|it| it == camera)
    });
    let held = core
        .state()
        .held
        .get(camera)
        .map(|it| it.assigned.guard.token().get());
    if !runs || held != Some(token) {
        let why = "the camera is not worked on here under this token\n";
        return plain(StatusCode::CONFLICT, why);
    }
    let body = request.body().clone();
    match core
        .plane
        .picture(camera, token, (width, height), body)
        .await
    {
        Outcome::Yes(_) => answer_json(StatusCode::OK, &json!({"success": true})),
        Outcome::No(error) | Outcome::Unknown(error) => {
            plain(StatusCode::BAD_GATEWAY, format!("control plane: {error}\n"))
        }
    }
}

fn health(core: &Core) -> Value {
    let now = core.now();
    let failing = core.contact.failing_since();
    let reached = core.contact.reached_at();
    let views = core.views();
    let healthy = views.iter().filter(|view| view.state == "healthy").count();
    let running = views.iter().filter(|view| view.worker_id.is_some()).count();
    let state = core.state();
    let status = if state.stopping || state.draining {
        "draining"
    } else if failing.is_some() {
        "degraded"
    } else if !state.registered {
        "starting"
    } else {
        "ok"
    };
    let seconds = |millis: u64| millis as f64 / 1e3;
    let cache_age = state
        .catalog_at
        .map(|at| seconds(core.context.clock.unix().since(at)));
    json!({
        "status": status,
        "runner_id": core.context.runner_id,
        "control_plane": {
            "reachable": failing.is_none() && reached.is_some(),
            "failing_seconds": failing.map(|since| seconds(now.since(since))),
            "last_contact_seconds": reached.map(|at| seconds(now.since(at))),
            "streaming": core.plane.is_streaming(),
            "plain": core.plane.is_plain(),
        },
        "registered": state.registered,
        "cordoned": state.cordoned,
        "cache_age_seconds": cache_age,
        "cameras": state.held.len(),
        "cameras_wanted": state.wanted.len(),
        "cameras_avoided": state.avoid.keys().collect::<Vec<_>>(),
        "workers": {"running": running, "healthy": healthy},
    })
}

fn ready(core: &Core) -> Answer {
    let views = core.views();
    let state = core.state();
    let working = state.held.keys().filter(|name| {
        views
            .iter()
            .any(|view| view.state == "healthy" && view.cameras.contains(name))
    });
    let (working, all) = (working.count(), state.held.len());
    let is_ready = state.registered && !state.stopping && working == all;
    let status = if is_ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let body = json!({"ready": is_ready, "cameras": format!("{working}/{all}")});
    answer_json(status, &body)
}

fn leases(core: &Core) -> Value {
    let now = core.now();
    let state = core.state();
    let leases: Vec<Value> = state
        .held
        .iter()
        .map(|(name, it)| {
            let guard = &it.assigned.guard;
            let standing = match guard.standing() {
                lease::Standing::Owned => "owned",
                lease::Standing::Grace => "grace",
                lease::Standing::Over => "over",
            };
            json!({
                "camera_uuid": name,
                "lease_id": it.assigned.lease_id,
                "token": guard.token().get(),
                "standing": standing,
                "deadline_in_ms": guard.deadline().since(now),
                "stops_in_ms": guard.stops_at().since(now),
                "slot": it.slot,
                "since_unix_ms": it.since.get(),
                "config_version": it.assigned.config_version,
                "zone_version": it.assigned.zone_version,
            })
        })
        .collect();
    json!({"leases": leases})
}

/// Asked by other managers that cannot reach the control plane.
async fn reachable(core: &Core) -> Answer {
    let reached = tokio::time::timeout(REACH_LIMIT, core.plane.now()).await;
    if matches!(reached, Ok(Ok(_))) {
        answer_json(StatusCode::OK, &json!({"reachable": true}))
    } else {
        answer_json(
            StatusCode::SERVICE_UNAVAILABLE,
            &json!({"reachable": false}),
        )
    }
}
