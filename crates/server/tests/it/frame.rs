//! What holds for every request: problems, ids, limits, budgets.

use std::time::Duration;

use leasehold_testkit::wait;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{ADMIN, LONG, READER, WRITER, options, start, start_with};

/// Method, path, media type and body of a request; status and code of its answer.
type Case = (
    Method,
    &'static str,
    Option<&'static str>,
    String,
    u16,
    &'static str,
);

#[tokio::test]
async fn every_error_is_a_problem_with_the_request_s_id() {
    let server = start().await;
    let big = format!("{{\"kind\":\"{}\"}}", "x".repeat(1024 * 1024));
    let acquire = "/api/v1/leases/acquire/";
    let cases: Vec<Case> = vec![
        (
            Method::GET,
            "/nowhere",
            None,
            String::new(),
            404,
            "NOT_FOUND",
        ),
        (
            Method::GET,
            "/api/v1/nowhere",
            None,
            String::new(),
            404,
            "NOT_FOUND",
        ),
        (
            Method::PATCH,
            acquire,
            None,
            String::new(),
            405,
            "METHOD_NOT_ALLOWED",
        ),
        (
            Method::POST,
            acquire,
            Some("application/json"),
            big,
            413,
            "PAYLOAD_TOO_LARGE",
        ),
        (
            Method::POST,
            acquire,
            Some("text/plain"),
            "{}".into(),
            415,
            "UNSUPPORTED_MEDIA_TYPE",
        ),
        (
            Method::POST,
            acquire,
            Some("application/json"),
            "{".into(),
            400,
            "CONFIG_INVALID",
        ),
        (
            Method::POST,
            acquire,
            Some("application/json"),
            "[]".into(),
            400,
            "CONFIG_INVALID",
        ),
        (
            Method::POST,
            acquire,
            Some("application/json"),
            r#"{"ttl_seconds":"x"}"#.into(),
            400,
            "CONFIG_INVALID",
        ),
        (
            Method::POST,
            "/api/v1/authority/nonsense",
            Some("application/json"),
            "null".into(),
            404,
            "NOT_FOUND",
        ),
        (
            Method::GET,
            "/api/v1/holders/h/stream",
            None,
            String::new(),
            400,
            "CONFIG_INVALID",
        ),
    ];
    for (method, path, media, body, status, code) in cases {
        let mut request = server
            .http
            .request(method.clone(), format!("{}{path}", server.url))
            .bearer_auth(ADMIN)
            .header("x-request-id", "my-id")
            .body(body);
        if let Some(media) = media {
            request = request.header("content-type", media);
        }
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), status, "{method} {path}");
        assert_eq!(
            response.headers()["content-type"],
            "application/problem+json",
            "{path}"
        );
        assert_eq!(response.headers()["x-request-id"], "my-id");
        let problem: Value = response.json().await.unwrap();
        assert_eq!(problem["code"], code, "{method} {path}: {problem}");
        assert_eq!(problem["request_id"], "my-id");
        for field in [
            "type",
            "title",
            "status",
            "detail",
            "errors",
            "message",
            "error_code",
        ] {
            assert!(!problem[field].is_null(), "{field}: {problem}");
        }
    }
    let made = server.send("", Method::GET, "/healthz", None).await;
    assert_eq!(made.headers()["x-request-id"].len(), 36);
}

#[tokio::test]
async fn wrong_fields_are_named_with_what_was_expected() {
    let server = start().await;
    let body = json!({"kind": "a b", "id": "x", "holder": "h", "ttl_seconds": 0});
    let (status, problem) = server
        .call(WRITER, "POST", "/api/v1/leases/acquire/", body)
        .await;
    assert_eq!(status, 400);
    let fields: Vec<_> = problem["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["field"].as_str().unwrap())
        .collect();
    assert_eq!(fields, ["kind", "ttl_seconds"]);
    assert_eq!(problem["errors"][1]["expected"], "1 to 3600 seconds");
    let body = json!({"kind": "a", "id": "x", "holdr": "h"});
    let (_, problem) = server
        .call(WRITER, "POST", "/api/v1/leases/acquire/", body)
        .await;
    assert_eq!(problem["errors"][0]["field"], "holdr");
}

#[tokio::test]
async fn renewals_and_releases_go_on_when_acquires_are_turned_away() {
    let mut options = options();
    options.limits.acquires = 0;
    options.limits.waiters = 1;
    let server = start_with(options).await;
    // The one place for waiters also grants, so that there is something to keep.
    let body = json!({"kind": "a", "id": "1", "holder": "h", "wait_seconds": 1});
    let (status, lease) = server
        .call(WRITER, "POST", "/api/v1/leases/acquire/", body)
        .await;
    assert_eq!(status, 200, "{lease}");
    let body = json!({"kind": "a", "id": "2", "holder": "h"});
    let response = server
        .send(WRITER, Method::POST, "/api/v1/leases/acquire/", Some(body))
        .await;
    assert_eq!(response.status(), 503);
    assert_eq!(response.headers()["retry-after"], "1");
    let problem: Value = response.json().await.unwrap();
    assert_eq!(problem["code"], "OVERLOADED");
    let id = lease["lease_id"].as_str().unwrap();
    for (method, verb, body) in [
        ("PUT", "renew", json!({})),
        ("POST", "heartbeat", json!({})),
        ("DELETE", "release", Value::Null),
    ] {
        let (status, _) = server
            .call(
                WRITER,
                method,
                &format!("/api/v1/leases/{id}/{verb}/"),
                body,
            )
            .await;
        assert_eq!(status, 200, "{verb}");
    }
    let (_, metrics) = server.call("", "GET", "/metrics", Value::Null).await;
    assert!(
        metrics
            .as_str()
            .unwrap()
            .contains("leasehold_shed_total{class=\"acquire\"} 1"),
        "{metrics}"
    );
}

#[tokio::test]
async fn only_acquires_are_rate_limited_each_token_for_itself() {
    let mut options = options();
    options.limits.acquires_per_second = Some(1);
    options.limits.acquire_burst = Some(2);
    let server = start_with(options).await;
    let acquire = |token: &'static str, id: usize| {
        let body = json!({"kind": "a", "id": id.to_string(), "holder": "h"});
        server.send(token, Method::POST, "/api/v1/leases/acquire/", Some(body))
    };
    let mut limited = None;
    for id in 0..4 {
        let response = acquire(WRITER, id).await;
        if response.status() == 429 {
            limited = Some(response);
        }
    }
    let limited = limited.expect("four at once are more than two");
    assert_eq!(limited.headers()["retry-after"], "1");
    assert_eq!(
        limited.json::<Value>().await.unwrap()["code"],
        "RATE_LIMITED"
    );
    assert_eq!(acquire(ADMIN, 9).await.status(), 200);
    for _ in 0..20 {
        let (status, _) = server
            .call(
                WRITER,
                "POST",
                "/api/v1/leases/renew/",
                json!({"holder": "h"}),
            )
            .await;
        assert_eq!(status, 200);
        let (status, _) = server
            .call(WRITER, "PUT", "/api/v1/holders/h/", json!({}))
            .await;
        assert_eq!(status, 200, "a sign of life is no acquire");
    }
}

#[tokio::test]
async fn l6_a_caller_that_went_away_no_longer_waits() {
    let server = start().await;
    let lease = server.acquire("a", "1", "first").await;
    let body = json!({"kind": "a", "id": "1", "holder": "gone", "wait_seconds": 60});
    let waiting = server
        .http
        .post(format!("{}/api/v1/leases/acquire/", server.url))
        .bearer_auth(WRITER)
        .json(&body)
        .timeout(Duration::from_millis(200))
        .send()
        .await;
    assert!(waiting.is_err());
    wait::until(LONG, "the queue is empty", async || {
        let (_, list) = server
            .call(READER, "GET", "/api/v1/leases/?status=pending", Value::Null)
            .await;
        list["leases"] == json!([])
    })
    .await;
    let path = format!(
        "/api/v1/leases/{}/release/",
        lease["lease_id"].as_str().unwrap()
    );
    server.call(WRITER, "DELETE", &path, Value::Null).await;
    server.acquire("a", "1", "second").await;
}

#[tokio::test]
async fn health_metrics_and_the_page_are_there() {
    let server = start().await;
    server.acquire("a", "1", "h").await;
    assert_eq!(server.call("", "GET", "/healthz", Value::Null).await.0, 200);
    let (status, ready) = server.call("", "GET", "/readyz/", Value::Null).await;
    assert_eq!((status.as_u16(), &ready["status"]), (200, &json!("ready")));
    wait::until(LONG, "the grant is counted", async || {
        let (_, metrics) = server.call("", "GET", "/metrics", Value::Null).await;
        metrics
            .as_str()
            .unwrap()
            .contains("leasehold_events_total{event=\"lease_acquired\"} 1")
    })
    .await;
    let (_, metrics) = server.call("", "GET", "/metrics", Value::Null).await;
    let metrics = metrics.as_str().unwrap();
    for line in [
        "leasehold_lease_operations_total{op=\"acquire\",outcome=\"granted\"} 1",
        "leasehold_lease_operation_seconds_count{op=\"acquire\"} 1",
        "leasehold_live_leases 1",
        "leasehold_http_requests_total{method=\"POST\",route=\"/api/v1/leases/acquire\",status=\"200\"} 1",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
    let page = server.send("", Method::GET, "/", None).await;
    assert_eq!(page.status(), 200);
    assert!(
        page.headers()["content-security-policy"]
            .to_str()
            .unwrap()
            .contains("'self'")
    );
    let text = page.text().await.unwrap();
    assert!(text.contains("<title>Leasehold</title>") && !text.contains("https://"));
    assert!(
        !text.contains("<style") && !text.contains("style="),
        "nothing inline: {text}"
    );
}

/// The files that the page names, with how they may be kept and compressed.
#[tokio::test]
async fn the_page_is_hashed_compressed_and_cached() {
    let server = start().await;
    let get = async |path: &str, headers: &[(&str, &str)]| {
        let mut request = server.http.get(format!("{}{path}", server.url));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.send().await.unwrap()
    };
    let page = get("/", &[]).await;
    assert_eq!(page.headers()["cache-control"], "no-cache");
    let etag = page.headers()["etag"].to_str().unwrap().to_owned();
    let text = page.text().await.unwrap();
    let same = get("/", &[("if-none-match", &etag)]).await;
    assert_eq!(same.status(), 304);
    let assets: Vec<&str> = text
        .split('"')
        .filter(|part| part.starts_with("/assets/"))
        .collect();
    assert!(assets.len() >= 2, "a script and a style sheet: {text}");
    let mut compressed = 0;
    for asset in assets {
        let plain = get(asset, &[]).await;
        assert_eq!(plain.status(), 200, "{asset}");
        assert_eq!(
            plain.headers()["cache-control"],
            "public, max-age=31536000, immutable"
        );
        assert!(plain.headers().get("content-encoding").is_none());
        let plain = plain.bytes().await.unwrap();
        for (accepted, encoding) in [("gzip, deflate", "gzip"), ("gzip, deflate, br", "br")] {
            let small = get(asset, &[("accept-encoding", accepted)]).await;
            assert_eq!(small.headers()["content-encoding"], encoding, "{asset}");
            assert_eq!(small.headers()["vary"], "accept-encoding");
            let small = small.bytes().await.unwrap();
            assert!(small.len() < plain.len(), "{asset}");
            compressed += small.len();
        }
        let refused = get(asset, &[("accept-encoding", "gzip;q=0, br;q=0")]).await;
        assert!(refused.headers().get("content-encoding").is_none());
        // The copies themselves have no address.
        assert_eq!(get(&format!("{asset}.br"), &[]).await.status(), 404);
    }
    assert!(compressed < 200_000, "{compressed} bytes in both encodings");
    for icon in ["/favicon.svg", "/favicon.ico"] {
        let icon = get(icon, &[]).await;
        assert_eq!(icon.headers()["content-type"], "image/svg+xml");
    }
}
