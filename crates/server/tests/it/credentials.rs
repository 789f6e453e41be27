//! Credentials that are revoked, share a name, are wrong, or come from another page; and what browsers
//! are told.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::time::Duration;

use leasehold_server::Server;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::support::{self, ADMIN, LONG, clock, memory, options, start, start_on, start_with};

pub async fn upgrade(server: &support::Running, headers: &str) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let text = format!(
        "GET /api/v1/holders/h/stream HTTP/1.1\r\nHost: {}\r\n{headers}Connection: Upgrade\r\n\
         Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        server.address
    );
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut seen = Vec::new();
    while !seen.windows(4).any(|it| it == b"\r\n\r\n") {
        let mut buffer = [0; 1];
        if tokio::time::timeout(LONG, stream.read(&mut buffer))
            .await
            .unwrap()
            .unwrap()
            == 0
        {
            break;
        }
        seen.push(buffer[0]);
    }
    let head = String::from_utf8_lossy(&seen).into_owned();
    (stream, head)
}

pub async fn cookie(server: &support::Running, secret: &str) -> String {
    let response = server
        .send(secret, Method::POST, "/api/v3/auth/session", None)
        .await;
    assert_eq!(response.status(), 204);
    let cookie = response.headers()["set-cookie"].to_str().unwrap();
    cookie.split(';').next().unwrap().to_owned()
}

#[tokio::test]
async fn two_credentials_of_one_name_keep_their_own_rights() {
    let mut options = options();
    for (secret, scope) in [
        ("strong-secret-strong", "leases:admin"),
        ("weak-secret-weak-weak", "leases:read"),
    ] {
        let spec = json!({"token": secret, "scopes": [scope], "name": "same"});
        options.tokens.push(serde_json::from_value(spec).unwrap());
    }
    let server = start_with(options).await;
    let weak = cookie(&server, "weak-secret-weak-weak").await;
    let strong = cookie(&server, "strong-secret-strong").await;
    let acquire = async |cookie: &str| {
        let body = json!({"kind": "job", "id": "x", "holder": "h", "incarnation": "0"});
        let request = server
            .http
            .post(format!("{}/api/v1/leases/acquire", server.url));
        request
            .header("cookie", cookie)
            .json(&body)
            .send()
            .await
            .unwrap()
            .status()
            .as_u16()
    };
    assert_eq!(acquire(&weak).await, 403);
    assert_eq!(acquire(&strong).await, 200);
}

#[tokio::test]
async fn a_socket_with_a_cookie_is_for_the_servers_own_page() {
    let server = start().await;
    let cookie = cookie(&server, ADMIN).await;
    let (_own, head) = upgrade(
        &server,
        &format!("Cookie: {cookie}\r\nOrigin: http://{}\r\n", server.address),
    )
    .await;
    assert!(head.contains(" 101 "), "{head}");
    let (_, head) = upgrade(
        &server,
        &format!("Cookie: {cookie}\r\nOrigin: http://evil.example\r\n"),
    )
    .await;
    assert!(head.contains(" 401 "), "{head}");
}

#[tokio::test]
async fn the_page_can_change_something_over_http2() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options();
    options.data_dir = Some(dir.path().to_owned());
    options.tls = Some(leasehold_server::TlsOptions {
        self_signed: true,
        ..leasehold_server::TlsOptions::default()
    });
    let server = start_with(options).await;
    let cookie = cookie(&server, ADMIN).await;
    let change = async |origin: &str| {
        let body = json!({"kind": "job", "id": "x", "holder": "h", "incarnation": "0"});
        let request = server
            .http
            .post(format!("{}/api/v1/leases/acquire", server.url));
        let request = request.header("cookie", &cookie).header("origin", origin);
        let answer = request.json(&body).send().await.unwrap();
        assert_eq!(answer.version(), reqwest::Version::HTTP_2);
        answer
    };
    let answer = change(&server.url).await;
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["x-content-type-options"], "nosniff");
    assert_eq!(answer.headers()["cache-control"], "no-store");
    assert!(answer.headers().contains_key("strict-transport-security"));
    assert_eq!(change("https://evil.example").await.status(), 401);
    assert_eq!(change("https://127.0.0.1:1").await.status(), 401);
}

#[tokio::test]
async fn many_wrong_credentials_are_answered_late() {
    const LATE: Duration = Duration::from_millis(500);
    let server = start().await;
    let ten = async |secret: &str, expected: u16| {
        let mut took = Vec::new();
        for number in 0..10 {
            let secret = secret.replace('#', &number.to_string());
            let asked = tokio::time::Instant::now();
            let call = server.call(&secret, "GET", "/api/v1/leases", Value::Null);
            assert_eq!(call.await.0.as_u16(), expected);
            took.push(asked.elapsed());
        }
        took.sort_unstable();
        took
    };
    // However busy the machine is, the quickest of ten is not as slow as one that is made to wait.
    assert!(ten("guess-#", 401).await[0] < LATE, "a few are not slowed");
    let many = (0..60).map(async |number| {
        let secret = format!("another-{number}");
        let call = server.call(&secret, "GET", "/api/v1/leases", Value::Null);
        assert_eq!(call.await.0.as_u16(), 401);
    });
    futures_util::future::join_all(many).await;
    // One is forgotten per second, so some are not.
    let took = ten("more-#", 401).await;
    assert!(took[7] >= LATE, "one of many takes its time: {took:?}");
    let known = ten(ADMIN, 200).await[0];
    assert!(known < LATE, "a right one is not slowed: {known:?}");
}

async fn first_byte(scheme: &str) -> u8 {
    let broker = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut options = options();
    let port = broker.local_addr().unwrap().port();
    options.amqp = Some(format!("{scheme}://guest:guest@localhost:{port}/%2f").into());
    let clock = clock();
    let authority = memory(&clock);
    let _server = start_on(options, clock, authority).await;
    let accepted = tokio::time::timeout(LONG, broker.accept()).await.unwrap();
    let (mut stream, _) = accepted.unwrap();
    let read = tokio::time::timeout(LONG, stream.read_u8()).await.unwrap();
    read.unwrap()
}

#[tokio::test]
async fn amqps_is_encrypted_and_other_schemes_are_refused() {
    // The first byte of a TLS handshake, and of AMQP's own greeting.
    assert_eq!(first_byte("amqps").await, 0x16);
    assert_eq!(first_byte("amqp").await, b'A');
    for wrong in ["http://x", "https://x", "x", "amqp:", "redis://h"] {
        let mut options = options();
        options.amqp = Some(wrong.to_owned().into());
        let clock = clock();
        let bound = Server::builder()
            .options(options)
            .authority(memory(&clock))
            .clock(std::sync::Arc::new(clock))
            .bind()
            .await;
        let error = bound
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default();
        assert!(error.contains("amqp"), "{wrong}: {error}");
    }
}
