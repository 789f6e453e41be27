//! Limits that limit: streams, bodies that trickle in, connections, and made-up methods.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::{sync::Arc, time::Duration};

use leasehold_server::Server;
use leasehold_testkit::wait;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::support::{LONG, READER, Running, WRITER, clock, memory, options, start, start_with};

async fn raw(server: &Running, text: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    stream
}

async fn first_line(stream: &mut TcpStream) -> String {
    let mut seen = Vec::new();
    while !seen.contains(&b'\n') {
        let mut buffer = [0; 256];
        let read = tokio::time::timeout(LONG, stream.read(&mut buffer));
        match read.await.unwrap() {
            Ok(0) | Err(_) => break,
            Ok(read) => seen.extend(&buffer[..read]),
        }
    }
    String::from_utf8_lossy(&seen)
        .lines()
        .next()
        .unwrap_or_default()
        .to_owned()
}

/// Whether the server closes the connection within this time.
async fn closes(stream: &mut TcpStream, within: Duration) -> bool {
    let mut buffer = [0; 256];
    matches!(
        tokio::time::timeout(within, stream.read(&mut buffer)).await,
        Ok(Ok(0) | Err(_))
    )
}

async fn events(server: &Running) -> reqwest::Response {
    server
        .send(READER, Method::GET, "/api/v1/events/stream", None)
        .await
}

#[tokio::test]
async fn hundreds_may_connect_at_the_same_moment() {
    let clock = clock();
    // Nothing is accepted, as at a moment at which the server is busy.
    let server = Server::builder()
        .options(options())
        .authority(memory(&clock))
        .clock(Arc::new(clock))
        .bind()
        .await
        .unwrap();
    let mut connected = Vec::new();
    for number in 0..300 {
        let connecting = TcpStream::connect(server.local_addr());
        let outcome = tokio::time::timeout(LONG, connecting).await;
        let outcome = outcome.unwrap_or_else(|_| panic!("the one after {number} waits"));
        connected.push(outcome.unwrap());
    }
}

#[tokio::test]
async fn a_stream_keeps_its_place_for_as_long_as_it_lives() {
    let mut options = options();
    options.limits.streams = 2;
    let server = start_with(options).await;
    let first = events(&server).await;
    assert_eq!(first.status(), StatusCode::OK);
    // A holder's stream counts the same.
    let mut socket = raw(
        &server,
        &format!(
            "GET /api/v1/holders/h/stream HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {WRITER}\r\n\
             Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        ),
    )
    .await;
    assert!(first_line(&mut socket).await.contains("101"));
    let full = events(&server).await;
    assert_eq!(full.status(), StatusCode::SERVICE_UNAVAILABLE);
    drop(first);
    wait::until(LONG, "the place is free again", async || {
        events(&server).await.status() == 200
    })
    .await;
    drop(socket);
    wait::until(LONG, "the holder's place is free again", async || {
        let (one, two) = tokio::join!(events(&server), events(&server));
        one.status() == 200 && two.status() == 200
    })
    .await;
}

#[tokio::test]
async fn a_body_that_trickles_in_keeps_no_holder_from_renewing() {
    let mut options = options();
    options.limits.keeps = 1;
    options.limits.acquires = 1;
    options.limits.others = 1;
    let server = start_with(options).await;
    server.acquire("a", "1", "h").await;
    let mut slow = Vec::new();
    for path in [
        "/api/v1/leases/renew",
        "/api/v1/leases/renew",
        "/api/v1/authority/records",
    ] {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {WRITER}\r\n\
             Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{{"
        );
        slow.push(raw(&server, &head).await);
    }
    // Those are inside by now: a request that came after them has been answered.
    for _ in 0..20 {
        let body = json!({"holder": "h", "incarnation": "0"});
        let (status, answer) = server
            .call(WRITER, "POST", "/api/v1/leases/renew", body)
            .await;
        assert_eq!(status, 200, "{answer}");
        let (status, _) = server
            .call(READER, "GET", "/api/v1/leases", Value::Null)
            .await;
        assert_eq!(status, 200);
    }
    drop(slow);
}

#[tokio::test]
async fn one_address_cannot_take_all_connections() {
    let mut options = options();
    options.limits.connections = 6;
    options.limits.connections_per_address = 4;
    let server = start_with(options).await;
    let mut open = Vec::new();
    for _ in 0..4 {
        let mut stream = raw(&server, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert!(first_line(&mut stream).await.contains("200"));
        open.push(stream);
    }
    let mut refused = TcpStream::connect(server.address).await.unwrap();
    assert!(closes(&mut refused, LONG).await, "one too many is closed");
    open.pop();
    wait::until(LONG, "a place is free again", async || {
        let mut stream = raw(&server, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await;
        first_line(&mut stream).await.contains("200")
    })
    .await;
    let mut stream = open.pop().unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut metrics = String::new();
    stream.read_to_string(&mut metrics).await.unwrap();
    assert!(
        metrics.contains("leasehold_shed_total{class=\"connection\"}"),
        "{metrics}"
    );
}

#[tokio::test]
async fn a_connection_that_says_nothing_is_closed() {
    let server = start().await;
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    assert!(closes(&mut silent, Duration::from_secs(15)).await);
}

#[tokio::test]
async fn made_up_methods_are_one_label() {
    let server = start().await;
    for method in ["BREW", "BREW2", "XYZZY"] {
        let mut stream = raw(
            &server,
            &format!("{method} /api/v1/leases HTTP/1.1\r\nHost: x\r\n\r\n"),
        )
        .await;
        assert!(first_line(&mut stream).await.contains("405"));
    }
    let (_, metrics) = server.call("", "GET", "/metrics", Value::Null).await;
    let metrics = metrics.as_str().unwrap();
    assert!(
        !metrics.contains("BREW") && !metrics.contains("XYZZY"),
        "{metrics}"
    );
    assert!(metrics.contains("method=\"OTHER\""), "{metrics}");
}

async fn nul_is_a_mistake_of_the_caller() {
    let server = start().await;
    for path in [
        "/api/v1/leases?tenant_id=a%00",
        "/api/v1/leases?holder=a%00b",
        "/api/v1/events?key=a:%00",
    ] {
        let (status, problem) = server.call(READER, "GET", path, Value::Null).await;
        assert_eq!(
            (status.as_u16(), &problem["code"]),
            (400, &json!("CONFIG_INVALID")),
            "{path}"
        );
    }
    let query = json!({"kind": null, "id": null, "holder": null, "status": null, "tenant": "a\0",
        "after": null, "limit": 10});
    let (status, _) = server
        .call(READER, "POST", "/api/v1/authority/leases", query)
        .await;
    assert_eq!(status, 400);
    for deceptive in ["a\u{202e}b", "a\u{200b}", "\u{feff}a", "a\u{2066}"] {
        let body = json!({"kind": "job", "id": deceptive, "holder": "h"});
        let (status, _) = server
            .call(WRITER, "POST", "/api/v1/leases/acquire", body)
            .await;
        assert_eq!(status, 400, "{}", deceptive.escape_unicode());
    }
}

async fn limits_of_the_kernels_interface_are_capped() {
    let server = start().await;
    for first in (0..1_100).step_by(100) {
        let keys: Vec<Value> = (first..first + 100)
            .map(|number| json!({"kind": "a", "id": format!("{number:04}")}))
            .collect();
        let body = json!({"keys": keys, "holder": "h", "incarnation": "0", "ttl_seconds": 600});
        let (status, answer) = server
            .call(WRITER, "POST", "/api/v1/leases/acquire", body)
            .await;
        assert_eq!(status, 200, "{answer}");
    }
    let everything = u64::from(u32::MAX);
    let leases = json!({"kind": "a", "id": null, "holder": null, "status": null, "tenant": null,
        "after": null, "limit": everything});
    let events = json!({"after": 0, "key": null, "kind": "a", "event": null, "tenant": null,
        "limit": everything});
    for (method, items, query) in [("leases", "items", leases), ("events", "events", events)] {
        let path = format!("/api/v1/authority/{method}");
        let (status, page) = server.call(READER, "POST", &path, query).await;
        assert_eq!(status, 200, "{page}");
        assert_eq!(page[items].as_array().unwrap().len(), 1_000, "{method}");
        assert_eq!(page["more"], true, "{method}");
    }
}

on_every_backend!(
    nul_is_a_mistake_of_the_caller,
    limits_of_the_kernels_interface_are_capped
);
