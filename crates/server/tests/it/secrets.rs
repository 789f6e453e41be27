//! Credentials in cameras' addresses: who sees them, and that they survive those who do not.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use serde_json::{Value, json};

use crate::support::{self, ADMIN, options, start_with};

const SEES: &str = "sees-credentials-secret";
const URL: &str = "rtsp://joe:hush@camera.local/one?token=hush2&channel=1";

async fn start() -> support::Running {
    let mut options = options();
    let sees =
        json!({"token": SEES, "scopes": ["leases:admin", "runners:admin", "credentials:read"]});
    options.tokens.push(serde_json::from_value(sees).unwrap());
    let server = start_with(options).await;
    let body = json!({"camera_uuid": "cam", "rtsp_url": URL});
    let (status, made) = server
        .call(ADMIN, "POST", "/api/v1/tenants/t/sites/s/cameras/", body)
        .await;
    assert_eq!(status, 201, "{made}");
    assert!(!made.to_string().contains("hush"), "{made}");
    server
}

async fn passwords_need_a_scope_of_their_own() {
    let server = start().await;
    let key = json!("camera:t/s/cam");
    let all = json!({"kind": "camera", "prefix": "", "after": null, "limit": 10});
    for (method, body) in [("record", key), ("records", all)] {
        let path = format!("/api/v1/authority/{method}");
        let (status, hidden) = server.call(ADMIN, "POST", &path, body.clone()).await;
        assert_eq!(status, 200, "{hidden}");
        let hidden = hidden.to_string();
        assert!(
            hidden.contains("camera.local") && !hidden.contains("hush"),
            "{hidden}"
        );
        let (_, shown) = server.call(SEES, "POST", &path, body).await;
        assert!(shown.to_string().contains("joe:hush@"), "{shown}");
    }
    // A snapshot at the start of a watch shows records too.
    let watch = server
        .http
        .post(format!("{}/api/v1/authority/watch", server.url))
        .bearer_auth(ADMIN)
        .json(&json!({"from": 1_000_000}))
        .send();
    let mut watch = watch.await.unwrap();
    let mut seen = String::new();
    while !seen.contains("camera.local") {
        let chunk = tokio::time::timeout(support::LONG, watch.chunk())
            .await
            .unwrap();
        seen.push_str(&String::from_utf8_lossy(&chunk.unwrap().unwrap()));
    }
    assert!(!seen.contains("hush"), "{seen}");
}

async fn who_does_not_see_a_password_keeps_it() {
    let server = start().await;
    let path = "/api/v1/tenants/t/sites/s/cameras/cam/";
    let url = async || {
        let (_, camera) = server.call(SEES, "GET", path, Value::Null).await;
        camera["rtsp_url"].as_str().unwrap().to_owned()
    };
    assert_eq!(url().await, URL);
    // Read, edit, write back.
    let (_, camera) = server.call(ADMIN, "GET", path, Value::Null).await;
    assert_eq!(
        camera["rtsp_url"],
        "rtsp://camera.local/one?token=(hidden)&channel=1"
    );
    let body = json!({"rtsp_url": camera["rtsp_url"], "min_score": 0.9});
    let (status, changed) = server.call(ADMIN, "PUT", path, body).await;
    assert_eq!((status.as_u16(), &changed["min_score"]), (200, &json!(0.9)));
    assert_eq!(url().await, URL);
    // Another path on the same host keeps it; another host never gets it.
    let body = json!({"rtsp_url": "rtsp://camera.local/two"});
    server.call(ADMIN, "PUT", path, body).await;
    assert_eq!(url().await, "rtsp://joe:hush@camera.local/two");
    let body = json!({"rtsp_url": "rtsp://elsewhere.example/two"});
    server.call(ADMIN, "PUT", path, body).await;
    assert_eq!(url().await, "rtsp://elsewhere.example/two");
}

on_every_backend!(
    passwords_need_a_scope_of_their_own,
    who_does_not_see_a_password_keeps_it,
);
