//! One tenant can neither see nor touch what another has, on any route of the specification.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use serde_json::{Value, json};

use crate::support::{self, ADMIN, TENANT_A, TENANT_B, start};

/// What belongs to tenant `b`, under words that occur nowhere else.
const TELLTALES: [&str; 10] = [
    "b-presence",
    "b-camera",
    "b-runner",
    "b-site",
    "b-zone",
    "b-shard",
    "b-key",
    "camera.local",
    "worker-01",
    "production",
];

/// Puts tenant b's own names into a path of the specification.
fn filled(path: &str, lease: &str) -> String {
    [
        ("{tenant_id}", "b"),
        ("{site_id}", "b-site"),
        ("{camera_uuid}", "b-camera"),
        ("{zone_id}", "1"),
        ("{runner_id}", "b-runner"),
        ("{lease_id}", lease),
        ("{name}", "b-presence"),
    ]
    .into_iter()
    .fold(path.to_owned(), |path, (slot, name)| {
        path.replace(slot, name)
    })
}

async fn no_route_shows_or_changes_what_another_tenant_has() {
    let server = start().await;
    server.runner("b", "b-site", "b-runner", 4).await;
    server.camera("b", "b-site", "b-camera").await;
    let zone = json!({"zone_id": 1, "name": "b-zone", "kind": "include", "polygon": [[0, 0], [9, 0], [9, 9]]});
    let (status, _) = server
        .call(
            TENANT_B,
            "POST",
            "/api/v1/tenants/b/sites/b-site/zones/",
            zone,
        )
        .await;
    assert_eq!(status, 201);
    let acquire = json!({"camera_uuid": "b-camera", "runner_id": "b-runner", "shard_id": "b-shard", "ttl_seconds": 3600});
    let (status, lease) = server
        .call(TENANT_B, "POST", "/api/v1/leases/acquire/", acquire)
        .await;
    assert_eq!(status, 200, "{lease}");
    let id = lease["lease_id"].as_str().unwrap().to_owned();
    let generic = json!({"kind": "job", "id": "b-key", "holder": "b-runner", "ttl_seconds": 3600});
    server
        .call(TENANT_B, "POST", "/api/v1/leases/acquire/", generic)
        .await;
    let presence = json!({"ttl_seconds": 3600});
    let (status, _) = server
        .call(TENANT_B, "PUT", "/api/v1/holders/b-presence/", presence)
        .await;
    assert_eq!(status, 200);
    let before = picture(&server).await;

    let (_, spec) = server
        .call(ADMIN, "GET", "/api/openapi.json", Value::Null)
        .await;
    let mut tried = 0;
    for (path, methods) in spec["paths"].as_object().unwrap() {
        // Streams stay open; what they show is tried elsewhere.
        if !path.starts_with("/api/v1/") || path.ends_with("/stream") {
            continue;
        }
        let methods: Vec<String> = methods.as_object().unwrap().keys().cloned().collect();
        for method in methods {
            for body in bodies(path, &lease) {
                let bare = method == "get" || method == "delete";
                let path = filled(path, &id);
                let body = if bare { Value::Null } else { body };
                let (status, answer) = server
                    .call(TENANT_A, &method.to_uppercase(), &path, body.clone())
                    .await;
                let text = without_own(answer).to_string();
                tried += 1;
                assert!(status.as_u16() < 500, "{method} {path}: {status} {text}");
                if status.is_success() {
                    let said = format!("{path} {body}");
                    // Only what the caller did not say itself is news to it.
                    for telltale in TELLTALES.into_iter().filter(|it| !said.contains(it)) {
                        assert!(!text.contains(telltale), "{method} {path} shows {text}");
                    }
                }
            }
        }
    }
    assert!(tried > 50, "only {tried} requests");
    assert_eq!(picture(&server).await, before);
}

/// What is not tenant a's: it may have given its own things the same names.
fn without_own(mut answer: Value) -> Value {
    let is_own = |it: &Value| {
        let names =
            |field: &Value, start: &str| field.as_str().is_some_and(|it| it.contains(start));
        [&it["tenant_id"], &it["tenant"], &it["labels"]["tenant"]].contains(&&json!("a"))
            || names(&it["key"], ":a/")
            || (it["kind"].is_string() && it["id"].as_str().is_some_and(|id| id.starts_with("a/")))
    };
    if is_own(&answer) {
        return Value::Null;
    }
    match &mut answer {
        Value::Array(items) => {
            for item in items {
                *item = without_own(item.take());
            }
        }
        Value::Object(fields) => {
            for field in fields.values_mut() {
                *field = without_own(field.take());
            }
        }
        _ => {}
    }
    answer
}

/// Bodies that reach as far as possible into a route.
fn bodies(path: &str, lease: &Value) -> Vec<Value> {
    let token = &lease["token"];
    let incarnation = &lease["incarnation"];
    if path.ends_with("/acquire") {
        return vec![
            json!({"camera_uuid": "b-camera", "runner_id": "b-runner"}),
            json!({"kind": "camera", "id": "b-camera", "holder": "b-runner"}),
            json!({"kind": "runner", "id": "b-runner", "holder": "thief"}),
            json!({"camera_uuid": "b-camera", "runner_id": "b-runner", "tenant_id": "b"}),
        ];
    }
    if path.ends_with("/leases/renew") {
        return vec![
            json!({"holder": "b-runner", "incarnation": incarnation}),
            json!({"holder": "b-runner", "leases": [{"kind": "camera", "id": "b-camera", "token": token}]}),
        ];
    }
    if path.ends_with("/register") {
        return vec![
            json!({"runner_id": "b-runner", "tenant_id": "a", "site_id": "s", "deployment_group": "g",
                "deployment_version": "1", "host": "h", "port": 1}),
            json!({"runner_id": "b-runner", "tenant_id": "b", "site_id": "b-site", "deployment_group": "g",
                "deployment_version": "1", "host": "h", "port": 1}),
        ];
    }
    vec![
        json!({}),
        json!({"reason": "mine now"}),
        json!({"camera_uuid": "b-camera", "rtsp_url": "rtsp://x/y"}),
        json!({"min_score": 0.9}),
        json!({"active_leases": [lease["lease_id"]]}),
        json!({"ttl_seconds": 5}),
    ]
}

/// Everything tenant b has, as an administrator sees it.
async fn picture(server: &support::Running) -> Vec<Value> {
    let mut all = Vec::new();
    for path in [
        "/api/v1/leases/?tenant_id=b",
        "/api/v1/runners/b-runner/?tenant_id=b",
        "/api/v1/cameras/b-camera/",
        "/api/v1/tenants/b/sites/b-site/zones/",
        "/api/v1/tenants/b/sites/b-site/",
        "/api/v1/tenants/b/sites/b-site/config/version",
    ] {
        let (status, body) = server.call(ADMIN, "GET", path, Value::Null).await;
        assert_eq!(status, 200, "{path}: {body}");
        all.push(body);
    }
    all
}

async fn one_tenant_cannot_take_the_name_of_another_ones_camera() {
    let server = start().await;
    server.camera("b", "s", "cam-1").await;
    let body = json!({"camera_uuid": "cam-1", "rtsp_url": "rtsp://x/y"});
    let (status, problem) = server
        .call(TENANT_A, "POST", "/api/v1/tenants/a/sites/s/cameras/", body)
        .await;
    assert_eq!(
        (status.as_u16(), &problem["code"]),
        (409, &json!("ALREADY_EXISTS"))
    );
    let (status, _) = server
        .call(TENANT_A, "GET", "/api/v1/cameras/cam-1/", Value::Null)
        .await;
    assert_eq!(status, 404);
}

/// The name of a runner, and of a holder, is given once within a tenant.
async fn namesakes_of_two_tenants_are_two_runners() {
    let server = start().await;
    for (tenant, token) in [("a", TENANT_A), ("b", TENANT_B)] {
        server.camera(tenant, "s", &format!("cam-{tenant}")).await;
        let registered = server.runner(tenant, "s", "edge", 4).await;
        assert_eq!(registered["created"], true, "{registered}");
        let (status, beat) = server
            .call(token, "PUT", "/api/v1/runners/edge/heartbeat/", json!({}))
            .await;
        assert_eq!(status, 200, "{beat}");
        let take = beat["take"][0]["camera_uuid"].as_str();
        assert_eq!(take, Some(format!("cam-{tenant}").as_str()), "{beat}");
        // Without a tenant, and without an incarnation: the camera says whose runner is meant.
        let (status, lease) = server.lease_camera(&format!("cam-{tenant}"), "edge").await;
        assert_eq!(status, 200, "{lease}");
        let (status, here) = server
            .call(token, "PUT", "/api/v1/holders/host/", json!({}))
            .await;
        assert_eq!(status, 200, "{here}");
    }
    // Who is bound to a tenant means its own; anybody else says which.
    for (method, path) in [
        ("GET", "/api/v1/runners/edge/"),
        ("PUT", "/api/v1/runners/edge/heartbeat/"),
        ("GET", "/api/v1/runners/edge/assignments/"),
        ("POST", "/api/v1/runners/edge/cordon/"),
        ("DELETE", "/api/v1/runners/edge/"),
        ("DELETE", "/api/v1/holders/host/"),
    ] {
        let body = if method == "PUT" {
            json!({})
        } else {
            Value::Null
        };
        let (status, problem) = server.call(ADMIN, method, path, body).await;
        let got = (status.as_u16(), problem["code"].as_str());
        assert_eq!(got, (409, Some("NAME_AMBIGUOUS")), "{method} {path}");
        assert!(problem.to_string().contains("tenant_id"), "{problem}");
    }
    let (status, cordoned) = server
        .call(
            ADMIN,
            "POST",
            "/api/v1/runners/edge/cordon/?tenant_id=a",
            Value::Null,
        )
        .await;
    assert_eq!(
        (status.as_u16(), &cordoned["tenant_id"]),
        (200, &json!("a"))
    );
    let (_, other) = server
        .call(TENANT_B, "GET", "/api/v1/runners/edge/", Value::Null)
        .await;
    assert_eq!(other["status"], "active", "{other}");
    assert_eq!(other["assigned_cameras"], json!(["cam-b"]), "{other}");
    let (status, _) = server
        .call(
            TENANT_B,
            "GET",
            "/api/v1/runners/edge/?tenant_id=a",
            Value::Null,
        )
        .await;
    assert_eq!(status, 403);
    let (_, list) = server
        .call(ADMIN, "GET", "/api/v1/runners/", Value::Null)
        .await;
    for (runner, camera) in list["runners"]
        .as_array()
        .unwrap()
        .iter()
        .zip(["cam-a", "cam-b"])
    {
        assert_eq!(runner["assigned_cameras"], json!([camera]), "{runner}");
        assert!(runner["present_until"].is_string(), "{runner}");
    }
    // What one tenant ends, the other has.
    for path in ["/api/v1/runners/edge/", "/api/v1/holders/host/"] {
        let (status, _) = server.call(TENANT_A, "DELETE", path, Value::Null).await;
        assert_eq!(status, 200, "{path}");
    }
    let (status, only) = server
        .call(ADMIN, "GET", "/api/v1/runners/edge/", Value::Null)
        .await;
    assert_eq!((status.as_u16(), &only["status"]), (200, &json!("active")));
    assert_eq!(only["assigned_cameras"], json!(["cam-b"]), "{only}");
    let (_, here) = server
        .call(ADMIN, "GET", "/api/v1/holders/", Value::Null)
        .await;
    assert_eq!(here["holders"][0]["name"], "host", "{here}");
    let (status, left) = server
        .call(ADMIN, "DELETE", "/api/v1/holders/host/", Value::Null)
        .await;
    assert_eq!(status, 200, "{left}");
}

on_every_backend!(
    namesakes_of_two_tenants_are_two_runners,
    no_route_shows_or_changes_what_another_tenant_has,
    one_tenant_cannot_take_the_name_of_another_ones_camera,
);
