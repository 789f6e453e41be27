//! What goes wrong inside: handlers that panic, that never end, that are too many, and bodies that do
//! not come. The caller always gets a problem, and the server lives.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use axum::routing::get;
use leasehold_server::App;
use leasehold_testkit::wait;
use reqwest::{Method, Response};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Semaphore,
};
use utoipa_axum::router::OpenApiRouter;

use crate::support::{self, LONG, READER, Running, WRITER, options, start_route, start_with};

const PANICS: [&str; 3] = [
    "/api/v1/test/panic",
    "/api/v1/test/panic/later",
    // Streams have no time limit: a frame of its own sees to them.
    "/api/v1/test/stream",
];

fn panicking() -> OpenApiRouter<App> {
    async fn at_once() {
        panic!("a secret in a panic");
    }
    async fn later() {
        tokio::task::yield_now().await;
        panic!("a secret in a panic");
    }
    OpenApiRouter::new()
        .route(PANICS[0], get(at_once))
        .route(PANICS[1], get(later))
        .route(PANICS[2], get(later))
}

async fn problem(response: Response, status: u16, code: &str) -> Value {
    assert_eq!(response.status(), status);
    assert_eq!(
        response.headers()["content-type"],
        "application/problem+json"
    );
    let id = response.headers()["x-request-id"].clone();
    let problem: Value = response.json().await.unwrap();
    assert_eq!(problem["code"], code, "{problem}");
    assert_eq!(problem["status"], status);
    assert_eq!(problem["request_id"], id.to_str().unwrap());
    problem
}

async fn asked(server: &Running, path: &str) -> Response {
    server.send(READER, Method::GET, path, None).await
}

#[tokio::test]
async fn a_handler_that_panics_is_a_problem_and_the_server_lives() {
    let mut options = options();
    // One place only: a panic must give it back.
    options.limits.others = 1;
    options.limits.streams = 1;
    let server = start_route(options, panicking()).await;
    for round in 0..3 {
        for path in PANICS {
            let reported = problem(asked(&server, path).await, 500, "INTERNAL_ERROR").await;
            assert!(
                !reported.to_string().contains("secret"),
                "{round}: {reported}"
            );
        }
    }
    server.acquire("job", "x", "h").await;
    assert_eq!(server.call("", "GET", "/healthz", Value::Null).await.0, 200);
    let (_, metrics) = server.call("", "GET", "/metrics", Value::Null).await;
    let line = "leasehold_http_requests_total{method=\"GET\",route=\"/api/v1/test/panic\",status=\"500\"} 3";
    assert!(metrics.as_str().unwrap().contains(line), "{metrics}");
}

/// Counts how many of it are there.
struct Present(Arc<AtomicUsize>);

impl Present {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count.clone())
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A route whose handler waits for a permit that may never come.
fn waiting(gate: &Arc<Semaphore>, present: &Arc<AtomicUsize>) -> OpenApiRouter<App> {
    let (gate, present) = (gate.clone(), present.clone());
    OpenApiRouter::new().route(
        "/api/v1/test/wait",
        get(async move || {
            let _present = Present::new(&present);
            let _ = gate.acquire().await;
        }),
    )
}

#[tokio::test]
async fn a_request_that_takes_too_long_is_ended_and_its_place_is_free_again() {
    let mut options = options();
    // Long enough for a listing on a busy machine.
    options.limits.request_timeout = leasehold_api::config::Period::from_millis(600);
    options.limits.others = 1;
    let present = Arc::new(AtomicUsize::new(0));
    let route = waiting(&Arc::new(Semaphore::new(0)), &present);
    let server = start_route(options, route).await;
    for _ in 0..3 {
        let response = asked(&server, "/api/v1/test/wait").await;
        assert_eq!(response.headers()["retry-after"], "1");
        problem(response, 503, "REQUEST_TIMEOUT").await;
        assert_eq!(present.load(Ordering::SeqCst), 0, "it was ended");
    }
    let (status, _) = server
        .call(READER, "GET", "/api/v1/leases/", Value::Null)
        .await;
    assert_eq!(status, 200);
}

#[tokio::test]
async fn more_than_the_limit_is_turned_away_and_keeping_goes_on() {
    let mut options = options();
    options.limits.others = 2;
    let (gate, present) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    let server = start_route(options, waiting(&gate, &present)).await;
    let lease = server.acquire("job", "x", "h").await;
    let url = format!("{}/api/v1/test/wait", server.url);
    let busy: Vec<_> = (0..2)
        .map(|_| tokio::spawn(server.http.get(&url).send()))
        .collect();
    wait::until(LONG, "both are at work", async || {
        present.load(Ordering::SeqCst) == 2
    })
    .await;
    let response = asked(&server, "/api/v1/leases/").await;
    assert_eq!(response.headers()["retry-after"], "1");
    problem(response, 503, "OVERLOADED").await;
    let renew = format!(
        "/api/v1/leases/{}/renew/",
        lease["lease_id"].as_str().unwrap()
    );
    let (status, _) = server.call(WRITER, "PUT", &renew, json!({})).await;
    assert_eq!(status, 200, "renewals have places of their own");
    assert_eq!(server.call("", "GET", "/healthz", Value::Null).await.0, 200);
    gate.add_permits(2);
    for request in busy {
        assert_eq!(request.await.unwrap().unwrap().status(), 200);
    }
    assert_eq!(asked(&server, "/api/v1/leases/").await.status(), 200);
}

/// Most clients look for an answer only after they have sent everything: they must find it.
#[tokio::test]
async fn a_body_that_is_too_large_is_refused_even_if_its_sender_listens_late() {
    let server = start_with(options()).await;
    let body = vec![b'x'; 8 * 1024 * 1024];
    let chunk = [
        format!("{:x}\r\n", body.len()).as_bytes(),
        &body,
        b"\r\n0\r\n\r\n",
    ]
    .concat();
    let sent = [
        (format!("content-length: {}", body.len()), body),
        ("transfer-encoding: chunked".to_owned(), chunk),
    ];
    for (framing, body) in sent {
        let mut caller = TcpStream::connect(server.address).await.unwrap();
        let head = format!(
            "POST /api/v1/leases/acquire HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {WRITER}\r\ncontent-type: application/json\r\nconnection: close\r\n{framing}\r\n\r\n"
        );
        caller.write_all(head.as_bytes()).await.unwrap();
        caller.write_all(&body).await.unwrap();
        let mut answer = String::new();
        caller.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 413"), "{framing}: {answer}");
    }
}

#[tokio::test]
async fn a_body_has_the_size_that_is_configured_and_arrives_in_time() {
    let mut options = options();
    options.limits.body_bytes = 2_048;
    options.limits.request_timeout = leasehold_api::config::Period::from_millis(300);
    let server = start_with(options).await;
    let acquire = |padding: usize| {
        let labels = json!({"a": "x".repeat(100), "b": "x".repeat(100)});
        let mut body =
            json!({"kind": "job", "id": "x", "holder": "h", "labels": labels}).to_string();
        body.push_str(&" ".repeat(padding));
        server
            .http
            .post(format!("{}/api/v1/leases/acquire/", server.url))
            .bearer_auth(WRITER)
            .header("content-type", "application/json")
            .body(body)
            .send()
    };
    assert_eq!(acquire(0).await.unwrap().status(), 200);
    let reported = problem(acquire(2_048).await.unwrap(), 413, "PAYLOAD_TOO_LARGE").await;
    assert!(
        reported["detail"].as_str().unwrap().contains("2048"),
        "{reported}"
    );

    // A body that is announced and does not come.
    let mut slow = TcpStream::connect(server.address).await.unwrap();
    let head = format!(
        "POST /api/v1/leases/acquire HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {WRITER}\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{{"
    );
    slow.write_all(head.as_bytes()).await.unwrap();
    let mut answer = vec![0; 4_096];
    let read = tokio::time::timeout(LONG, slow.read(&mut answer)).await;
    let read = read.expect("an answer in time").unwrap();
    let answer = String::from_utf8_lossy(&answer[..read]);
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(answer.contains("REQUEST_TIMEOUT"), "{answer}");
}

#[tokio::test]
async fn limits_that_cannot_work_are_refused_before_anything_is_bound() {
    let mut options = options();
    options.limits.keeps = 1;
    let refused = leasehold_server::Server::builder()
        .options(options)
        .authority(support::memory(&support::clock()))
        .clock(Arc::new(support::clock()))
        .bind()
        .await;
    let error = refused.err().expect("refused").to_string();
    assert!(error.contains("limits.keeps"), "{error}");
}
