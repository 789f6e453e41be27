//! Stills of cameras: who may send one, who sees it, and what is not taken for one.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use reqwest::{Method, Response};
use serde_json::{Value, json};

use crate::support::{ADMIN, READER, Running, TENANT_A, TENANT_B, start};

const PATH: &str = "/api/v1/cameras/cam/picture";
const PNG: &[u8] = b"\x89PNG\r\n\x1a\nthe rest is for whoever draws it";

async fn put(server: &Running, token: &str, query: &str, body: impl Into<Vec<u8>>) -> Response {
    server
        .http
        .put(format!("{}{PATH}?{query}", server.url))
        .bearer_auth(token)
        .header("content-type", "image/png")
        .body(body.into())
        .send()
        .await
        .unwrap()
}

/// The code of a problem, with its status and the fields that are wrong.
async fn problem(response: Response) -> (u16, String, String) {
    let status = response.status().as_u16();
    let problem: Value = response.json().await.unwrap();
    let code = problem["code"].as_str().unwrap_or_default().to_owned();
    let field = problem["errors"][0]["field"].as_str().unwrap_or_default();
    let wrong = if field.is_empty() {
        &problem["detail"]
    } else {
        &problem["errors"][0]
    };
    (status, code, wrong.to_string())
}

async fn get(server: &Running, token: &str) -> Response {
    server.send(token, Method::GET, PATH, None).await
}

async fn furnished() -> (Running, u64) {
    let server = start().await;
    server.camera("a", "s", "cam").await;
    for runner in ["edge-1", "edge-2"] {
        server.runner("a", "s", runner, 4).await;
    }
    let (status, lease) = server.lease_camera("cam", "edge-1").await;
    assert_eq!(status, 200, "{lease}");
    (server, lease["token"].as_u64().unwrap())
}

async fn a_still_is_shown_to_its_tenant_alone() {
    let (server, token) = furnished().await;
    assert_eq!(get(&server, TENANT_A).await.status(), 204, "none yet");
    let query = format!("token={token}&width=1920&height=1080");
    assert_eq!(put(&server, TENANT_A, &query, PNG).await.status(), 200);
    for caller in [TENANT_A, ADMIN] {
        let shown = get(&server, caller).await;
        assert_eq!(shown.status(), 200);
        for (name, value) in [
            ("content-type", "image/png"),
            ("picture-size", "1920x1080"),
            ("x-content-type-options", "nosniff"),
            ("cache-control", "no-store"),
        ] {
            assert_eq!(shown.headers()[name], value, "{name}");
        }
        assert!(shown.headers().contains_key("picture-at"));
        assert_eq!(shown.bytes().await.unwrap(), PNG);
    }
    // Another tenant does not learn that there is such a camera, and neither sees nor replaces its still.
    for response in [
        get(&server, TENANT_B).await,
        put(&server, TENANT_B, &query, PNG).await,
    ] {
        let (status, code, _) = problem(response).await;
        assert_eq!((status, code.as_str()), (404, "CAMERA_NOT_FOUND"));
    }
    for (caller, expected) in [(READER, 403), ("", 401)] {
        assert_eq!(get(&server, caller).await.status(), expected);
        assert_eq!(put(&server, caller, &query, PNG).await.status(), expected);
    }
    // Gone with its camera, also when another one gets the name.
    let path = "/api/v1/tenants/a/sites/s/cameras/cam/";
    let (status, _) = server.call(ADMIN, "DELETE", path, Value::Null).await;
    assert_eq!(status, 200);
    assert_eq!(get(&server, TENANT_A).await.status(), 404);
    server.camera("b", "s", "cam").await;
    assert_eq!(get(&server, TENANT_B).await.status(), 204);
}

async fn a_still_counts_only_under_the_current_token() {
    let (server, first) = furnished().await;
    let query = |token: u64| format!("token={token}&width=2&height=1");
    let never = put(&server, TENANT_A, &query(first + 1000), PNG).await;
    let (status, code, _) = problem(never).await;
    assert_eq!((status, code.as_str()), (404, "LEASE_NOT_FOUND"));
    assert_eq!(
        put(&server, TENANT_A, &query(first), PNG).await.status(),
        200
    );
    let (_, lease) = server
        .call(ADMIN, "GET", "/api/v1/leases/camera/cam/", Value::Null)
        .await;
    let release = format!(
        "/api/v1/leases/{}/release/",
        lease["lease_id"].as_str().unwrap()
    );
    let (status, _) = server.call(ADMIN, "DELETE", &release, Value::Null).await;
    assert_eq!(status, 200);
    let ended = put(&server, TENANT_A, &query(first), PNG).await;
    let (status, code, _) = problem(ended).await;
    assert_eq!((status, code.as_str()), (410, "LEASE_EXPIRED"));
    let (status, lease) = server.lease_camera("cam", "edge-2").await;
    assert_eq!(status, 200, "{lease}");
    let second = lease["token"].as_u64().unwrap();
    let other = [PNG, b" of the next holder"].concat();
    assert_eq!(
        put(&server, TENANT_A, &query(second), other.clone())
            .await
            .status(),
        200
    );
    let stale = put(&server, TENANT_A, &query(first), PNG).await;
    let (status, code, _) = problem(stale).await;
    assert_eq!((status, code.as_str()), (410, "LEASE_EXPIRED"));
    let shown = get(&server, TENANT_A).await;
    assert_eq!(shown.bytes().await.unwrap(), other);
}

async fn what_is_wrong_with_a_still_is_said_exactly() {
    let (server, token) = furnished().await;
    let fine = format!("token={token}&width=2&height=1");
    let large = [PNG, &vec![0; 256 * 1024]].concat();
    let html = b"<html><script>alert(1)</script>".to_vec();
    let far = "token=9007199254740992&width=2&height=1".to_owned();
    for (query, body, status, code, word) in [
        (
            &fine,
            html,
            415,
            "UNSUPPORTED_MEDIA_TYPE",
            "JPEG, PNG or WebP",
        ),
        (&fine, Vec::new(), 415, "UNSUPPORTED_MEDIA_TYPE", "JPEG"),
        (&fine, large, 413, "PAYLOAD_TOO_LARGE", "262144 bytes"),
        (
            &format!("token={token}&width=0&height=1"),
            PNG.to_vec(),
            400,
            "CONFIG_INVALID",
            "width",
        ),
        (
            &format!("token={token}&width=2&height=99999"),
            PNG.to_vec(),
            400,
            "CONFIG_INVALID",
            "height",
        ),
        (
            &format!("token={token}&width=2"),
            PNG.to_vec(),
            400,
            "CONFIG_INVALID",
            "height",
        ),
        (
            &"token=x&width=2&height=1".to_owned(),
            PNG.to_vec(),
            400,
            "CONFIG_INVALID",
            "token",
        ),
        (
            &format!("{fine}&depth=8"),
            PNG.to_vec(),
            400,
            "CONFIG_INVALID",
            "depth",
        ),
        (&far, PNG.to_vec(), 400, "CONFIG_INVALID", "token"),
    ] {
        let answer = problem(put(&server, TENANT_A, query, body).await).await;
        assert_eq!((answer.0, answer.1.as_str()), (status, code), "{query}");
        assert!(answer.2.contains(word), "{query}: {}", answer.2);
    }
    assert_eq!(get(&server, TENANT_A).await.status(), 204);
    let body = json!({"camera_uuid": "none"});
    let path = "/api/v1/cameras/none/picture?token=1&width=2&height=1";
    let (status, _) = server.call(ADMIN, "PUT", path, body).await;
    assert_eq!(status, 415, "JSON is no picture");
}

on_every_backend!(
    a_still_counts_only_under_the_current_token,
    a_still_is_shown_to_its_tenant_alone,
    what_is_wrong_with_a_still_is_said_exactly,
);
