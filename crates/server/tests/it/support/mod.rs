//! A real server on a loopback port: over the in-memory store with a clock that is moved by hand, unless
//! the test runs on another backend (see [`backends`]).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

pub mod guarded;
#[macro_use]
pub mod backends;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use lease::{Authority, Clock, UnixMillis};
use leasehold_clock::{Manual, System};
use leasehold_server::{App, Builder, Options, Server, auth::TokenSpec};
use leasehold_store::embedded::{Embedded, Options as StoreOptions};
use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};
use tokio::{sync::oneshot, task::JoinHandle};
use utoipa_axum::router::OpenApiRouter;

pub const ADMIN: &str = "admin-secret";
pub const WRITER: &str = "writer-secret";
pub const READER: &str = "reader-secret";
pub const TENANT_A: &str = "tenant-a-secret";
pub const TENANT_B: &str = "tenant-b-secret";
pub const POWERLESS: &str = "powerless-secret";
pub const SESSIONS_ONLY: &str = "sessions-secret";

pub const LONG: Duration = Duration::from_secs(30);

pub struct Running {
    pub address: SocketAddr,
    pub url: String,
    pub clock: Manual,
    /// Whether time runs by itself.
    time_runs: bool,
    pub authority: Arc<dyn Authority>,
    pub http: reqwest::Client,
    stop: Option<oneshot::Sender<()>>,
    task: Option<JoinHandle<Result<(), leasehold_server::Error>>>,
}

fn token(secret: &str, scopes: &[&str], tenant: Option<&str>) -> TokenSpec {
    serde_json::from_value(json!({"token": secret, "scopes": scopes, "tenant": tenant})).unwrap()
}

pub fn options() -> Options {
    let mut options = Options {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        ..Options::default()
    };
    options.limits.shutdown = leasehold_api::config::Period::from_millis(5000);
    options.tokens = vec![
        token(ADMIN, &["leases:admin", "v3:admin", "runners:*"], None),
        token(WRITER, &["leases:write"], None),
        token(READER, &["leases:read"], None),
        token(TENANT_A, &["leases:admin", "runners:admin"], Some("a")),
        token(TENANT_B, &["leases:admin", "runners:admin"], Some("b")),
        token(POWERLESS, &[], None),
        token(SESSIONS_ONLY, &["v3:admin"], None),
    ];
    options
}

pub fn clock() -> Manual {
    Manual::new(UnixMillis::new(1_800_000_000_000))
}

pub fn memory(clock: &Manual) -> Arc<dyn Authority> {
    Arc::new(Embedded::memory(StoreOptions::default(), Arc::new(clock.clone())).unwrap())
}

pub async fn start() -> Running {
    start_with(options()).await
}

pub async fn start_with(options: Options) -> Running {
    let clock = clock();
    let Some(backend) = backends::Backend::current() else {
        let authority = memory(&clock);
        return start_on(options, clock, authority).await;
    };
    let authority = backend.open().await;
    let system = Arc::new(System);
    let mut running = launch(Server::builder(), options, clock, system, authority).await;
    running.time_runs = true;
    running
}

/// Two servers that share a store.
pub async fn start_pair(options: Options) -> [Running; 2] {
    let clock = clock();
    let Some(backend) = backends::Backend::current() else {
        let authority = memory(&clock);
        return [
            start_on(options.clone(), clock.clone(), authority.clone()).await,
            start_on(options, clock, authority).await,
        ];
    };
    let [first, second] = backend.open_replicas().await;
    let system = || Arc::new(System);
    let launched = launch(
        Server::builder(),
        options.clone(),
        clock.clone(),
        system(),
        first,
    );
    let mut first = launched.await;
    let launched = launch(Server::builder(), options, clock, system(), second);
    let mut second = launched.await;
    first.time_runs = true;
    second.time_runs = true;
    [first, second]
}

pub async fn start_on(options: Options, clock: Manual, authority: Arc<dyn Authority>) -> Running {
    let moved = Arc::new(clock.clone());
    launch(Server::builder(), options, clock, moved, authority).await
}

/// With one more route.
pub async fn start_route(options: Options, route: OpenApiRouter<App>) -> Running {
    let clock = clock();
    let (moved, authority) = (Arc::new(clock.clone()), memory(&clock));
    let builder = Server::builder().route(route);
    launch(builder, options, clock, moved, authority).await
}

async fn launch(
    builder: Builder,
    options: Options,
    clock: Manual,
    server_clock: Arc<dyn Clock>,
    authority: Arc<dyn Authority>,
) -> Running {
    let server = builder
        .options(options)
        .authority(authority.clone())
        .clock(server_clock)
        .bind()
        .await
        .unwrap();
    let address = server.local_addr();
    let url = server.url();
    let (stop, stopped) = oneshot::channel::<()>();
    let task = tokio::spawn(server.run(async {
        let _ = stopped.await;
    }));
    Running {
        address,
        url,
        clock,
        time_runs: false,
        authority,
        http: reqwest::Client::builder()
            .danger_accept_invalid_certs(true)
            .build()
            .unwrap(),
        stop: Some(stop),
        task: Some(task),
    }
}

impl Running {
    /// A time for the clock that is moved by hand, or a shorter one where it has to be waited for.
    pub fn either(&self, by_hand: u64, real: u64) -> u64 {
        if self.time_runs { real } else { by_hand }
    }

    /// Lets time pass: so much by hand, or so much of it for real, in milliseconds.
    pub async fn pass(&self, by_hand: u64, real: u64) {
        if self.time_runs {
            tokio::time::sleep(Duration::from_millis(real)).await;
        } else {
            self.clock.advance(by_hand);
        }
    }

    pub async fn send(
        &self,
        token: &str,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Response {
        let mut request = self
            .http
            .request(method, format!("{}{path}", self.url))
            .timeout(LONG);
        if !token.is_empty() {
            request = request.bearer_auth(token);
        }
        if let Some(body) = body {
            request = request.json(&body);
        }
        request.send().await.unwrap()
    }

    pub async fn call(
        &self,
        token: &str,
        method: &str,
        path: &str,
        body: Value,
    ) -> (StatusCode, Value) {
        let body = (!body.is_null()).then_some(body);
        let method = method.parse().unwrap();
        let response = self.send(token, method, path, body).await;
        let status = response.status();
        let text = response.text().await.unwrap();
        let value = serde_json::from_str(&text).unwrap_or(Value::String(text));
        (status, value)
    }

    /// One key for one holder.
    pub async fn acquire(&self, kind: &str, id: &str, holder: &str) -> Value {
        let body = json!({"kind": kind, "id": id, "holder": holder, "incarnation": "0", "ttl_seconds": 30});
        let (status, lease) = self
            .call(WRITER, "POST", "/api/v1/leases/acquire/", body)
            .await;
        assert_eq!(status, 200, "{lease}");
        lease
    }

    /// A registered runner.
    pub async fn runner(&self, tenant: &str, site: &str, id: &str, capacity: u32) -> Value {
        let body = json!({"runner_id": id, "tenant_id": tenant, "site_id": site, "capacity": capacity,
            "deployment_group": "production", "deployment_version": "v1.2.3",
            "host": "worker-01.example.com", "port": 8080, "capabilities": ["rtsp"]});
        let (status, runner) = self
            .call(ADMIN, "POST", "/api/v1/runners/register/", body)
            .await;
        assert_eq!(status, 200, "{runner}");
        runner
    }

    /// A registered camera.
    pub async fn camera(&self, tenant: &str, site: &str, id: &str) -> Value {
        let body = json!({"camera_uuid": id, "rtsp_url": "rtsp://user:secret@camera.local/stream"});
        let path = format!("/api/v1/tenants/{tenant}/sites/{site}/cameras/");
        let (status, camera) = self.call(ADMIN, "POST", &path, body).await;
        assert_eq!(status, 201, "{camera}");
        camera
    }

    /// A camera for a runner.
    pub async fn lease_camera(&self, camera: &str, runner: &str) -> (StatusCode, Value) {
        let body = json!({"camera_uuid": camera, "runner_id": runner, "ttl_seconds": 30});
        self.call(WRITER, "POST", "/api/v1/leases/acquire/", body)
            .await
    }

    pub fn tell_to_stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }

    pub async fn stopped(&mut self) {
        let task = self.task.take().unwrap();
        tokio::time::timeout(LONG, task)
            .await
            .expect("the server stops in time")
            .unwrap()
            .unwrap();
    }
}
