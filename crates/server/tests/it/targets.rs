//! Polling targets over HTTP.

use serde_json::{Value, json};

use crate::support::{ADMIN, READER, TENANT_A, start};

#[tokio::test]
async fn targets_are_added_changed_listed_and_removed() {
    let server = start().await;
    let call = async |method: &str, path: &str, body: Value| {
        let (status, answer) = server.call(ADMIN, method, path, body).await;
        (status.as_u16(), answer)
    };
    let document = json!({"id": "a", "url": "http://h/a", "slot": 3});
    let (status, added) = call("POST", "/api/v1/targets", document.clone()).await;
    assert_eq!((status, &added), (201, &document));
    let (status, problem) = call("POST", "/api/v1/targets", document).await;
    assert_eq!((status, &problem["code"]), (409, &json!("ALREADY_EXISTS")));
    // Only what is named changes; null removes.
    let change = json!({"isPaused": true, "slot": null});
    let (status, changed) = call("PUT", "/api/v1/targets/a", change).await;
    let expected = json!({"id": "a", "url": "http://h/a", "isPaused": true});
    assert_eq!((status, &changed), (200, &expected));
    let (status, _) = call("PUT", "/api/v1/targets/b", json!({})).await;
    assert_eq!(status, 200, "added by its path");
    let (_, first) = call("GET", "/api/v1/targets?limit=1", Value::Null).await;
    assert_eq!(first["targets"], json!([expected]));
    let cursor = first["next_cursor"].as_str().unwrap();
    let (_, second) = call(
        "GET",
        &format!("/api/v1/targets?cursor={cursor}"),
        Value::Null,
    )
    .await;
    assert_eq!(second, json!({"targets": [{"id": "b"}]}));
    let (status, _) = call("DELETE", "/api/v1/targets/a", Value::Null).await;
    assert_eq!(status, 200);
    for method in ["GET", "DELETE"] {
        let (status, _) = call(method, "/api/v1/targets/a", Value::Null).await;
        assert_eq!(status, 404);
    }
}

#[tokio::test]
async fn wrong_targets_are_refused_by_field_and_callers_by_scope_and_tenant() {
    let server = start().await;
    for (body, field) in [
        (json!({"url": "http://h/"}), "id"),
        (json!({"id": "a", "isPaused": "yes"}), "isPaused"),
        (json!({"id": "a", "url": 3}), "url"),
        (
            json!({"id": "a", "intervalSeconds": "4"}),
            "intervalSeconds",
        ),
    ] {
        let (status, problem) = server.call(ADMIN, "POST", "/api/v1/targets", body).await;
        assert_eq!(status.as_u16(), 400, "{problem}");
        assert_eq!(problem["errors"][0]["field"], field, "{problem}");
    }
    let (status, _) = server
        .call(ADMIN, "PUT", "/api/v1/targets/a", json!({"id": "b"}))
        .await;
    assert_eq!(status.as_u16(), 400, "the path names it");
    for token in [READER, TENANT_A] {
        for (method, path) in [("GET", "/api/v1/targets"), ("PUT", "/api/v1/targets/a")] {
            let (status, _) = server.call(token, method, path, json!({})).await;
            assert_eq!(status.as_u16(), 403, "{token} {method}");
        }
    }
}
