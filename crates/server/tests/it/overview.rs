//! What the page shows beside the resources: the caller, counts, the search over all leases, the sites.

use serde_json::{Value, json};

use crate::support::{ADMIN, READER, Running, SESSIONS_ONLY, TENANT_A, start};

async fn get(server: &Running, token: &str, path: &str) -> Value {
    let (status, body) = server.call(token, "GET", path, Value::Null).await;
    assert_eq!(status, 200, "{path}: {body}");
    body
}

/// What was read a moment ago is used again; this is later.
fn later(server: &Running) {
    server.clock.advance(2_000);
}

async fn hold(server: &Running, token: &str, id: &str, more: Value) -> Value {
    let mut body = json!({"kind": "job", "id": id, "holder": "worker", "incarnation": "1"});
    for (field, value) in more.as_object().into_iter().flatten() {
        body[field] = value.clone();
    }
    let (status, lease) = server
        .call(token, "POST", "/api/v1/leases/acquire", body)
        .await;
    assert_eq!(status, 200, "{lease}");
    lease
}

#[tokio::test]
async fn a_caller_learns_what_it_may_do() {
    let server = start().await;
    let me = get(&server, READER, "/api/v1/me").await;
    assert_eq!(me["scopes"], json!(["leases:read"]));
    assert!(me["tenant_id"].is_null() && !me.to_string().contains(READER));
    let bound = get(&server, TENANT_A, "/api/v1/me").await;
    assert_eq!(bound["tenant_id"], "a");
    let (status, _) = server.call("", "GET", "/api/v1/me", Value::Null).await;
    assert_eq!(status, 401);
}

#[tokio::test]
async fn counts_follow_what_happens() {
    let server = start().await;
    let first = hold(&server, ADMIN, "1", json!({"ttl_seconds": 3600})).await;
    hold(&server, ADMIN, "2", json!({"ttl_seconds": 10})).await;
    let grace = json!({"ttl_seconds": 10, "on_outage": {"policy": "hold", "grace_seconds": 60}});
    hold(&server, ADMIN, "3", grace).await;
    let overview = get(&server, READER, "/api/v1/overview").await;
    assert_eq!(overview["leases"]["active"], 3, "{overview}");
    assert_eq!(overview["leases"]["holders"], 1);
    assert_eq!(
        overview["leases"]["kinds"],
        json!([{"kind": "job", "active": 3}])
    );
    assert_eq!(overview["store"]["name"], "memory");
    assert!(overview["broker"].is_null());
    let path = format!(
        "/api/v1/leases/{}/revoke",
        first["lease_id"].as_str().unwrap()
    );
    let reason = json!({"reason": "a test"});
    assert_eq!(server.call(ADMIN, "POST", &path, reason).await.0, 200);
    // One lapses, one is withheld.
    server.clock.advance(11_000);
    leasehold_testkit::wait::until(crate::support::LONG, "one expires", async || {
        later(&server);
        let overview = get(&server, READER, "/api/v1/overview").await;
        overview["leases"]["active"] == 1 && overview["leases"]["jeopardy"] == 1
    })
    .await;
    let overview = get(&server, READER, "/api/v1/overview").await;
    let minutes = overview["activity"]["minutes"].as_array().unwrap();
    assert_eq!(minutes.len(), 60);
    let sum = |field: &str| -> u64 { minutes.iter().map(|it| it[field].as_u64().unwrap()).sum() };
    assert_eq!(
        ["acquired", "revoked", "expired", "released", "stolen"].map(sum),
        [3, 1, 1, 0, 0]
    );
    // An hour later nothing of it is left, and what is new is counted.
    server.clock.advance(3_700_000);
    hold(&server, ADMIN, "4", json!({})).await;
    let overview = get(&server, READER, "/api/v1/overview").await;
    let minutes = overview["activity"]["minutes"].as_array().unwrap();
    let acquired: u64 = minutes
        .iter()
        .map(|it| it["acquired"].as_u64().unwrap())
        .sum();
    assert_eq!(acquired, 1, "{overview}");
    // Other tenants' counts are nobody's business.
    let bound = get(&server, TENANT_A, "/api/v1/overview").await;
    assert_eq!(bound["leases"]["active"], 0);
    assert!(bound["activity"].is_null());
    // Which servers there are is not theirs to know either.
    assert_eq!(overview["replicas"], json!([]));
    assert!(bound["replicas"].is_null());
}

#[tokio::test]
async fn leases_are_searched_sorted_and_counted() {
    let server = start().await;
    for (id, ttl) in [("beta", 300), ("alpha", 100), ("gamma", 200)] {
        hold(&server, ADMIN, id, json!({"ttl_seconds": ttl})).await;
    }
    let other = json!({"holder": "Someone", "ttl_seconds": 50});
    hold(&server, TENANT_A, "delta", other).await;
    let ids = |found: &Value| -> Vec<String> {
        let leases = found["leases"].as_array().unwrap();
        leases
            .iter()
            .map(|it| it["id"].as_str().unwrap().to_owned())
            .collect()
    };
    let search = "/api/v1/leases/search";
    let all = get(&server, READER, search).await;
    assert_eq!(ids(&all), ["alpha", "beta", "delta", "gamma"]);
    assert_eq!((&all["matched"], &all["total"]), (&json!(4), &json!(4)));
    for (query, expected) in [
        ("sort=expires_at", vec!["delta", "alpha", "gamma", "beta"]),
        ("sort=-expires_at", vec!["beta", "gamma", "alpha", "delta"]),
        ("sort=-key&offset=1&limit=2", vec!["delta", "beta"]),
        ("q=ALPH", vec!["alpha"]),
        ("q=someone", vec!["delta"]),
        ("holder=worker&q=a", vec!["alpha", "beta", "gamma"]),
        ("kind=other", vec![]),
        ("status=pending", vec![]),
    ] {
        let found = get(&server, READER, &format!("{search}?{query}")).await;
        assert_eq!(ids(&found), expected, "{query}");
        assert_eq!(found["total"], 4);
    }
    let found = get(&server, READER, &format!("{search}?sort=key&limit=1")).await;
    assert_eq!((found["matched"].as_u64(), ids(&found).len()), (Some(4), 1));
    let bound = get(&server, TENANT_A, search).await;
    assert_eq!(
        (ids(&bound), &bound["total"]),
        (vec!["delta".to_owned()], &json!(1))
    );
    for wrong in [
        "sort=x", "sort=", "status=x", "status=", "limit=0", "page=1",
    ] {
        let path = format!("{search}?{wrong}");
        assert_eq!(server.call(READER, "GET", &path, Value::Null).await.0, 400);
    }
    let (status, _) = server.call(SESSIONS_ONLY, "GET", search, Value::Null).await;
    assert_eq!(status, 403);
    // A scan is used again for a moment, and no longer.
    hold(&server, ADMIN, "epsilon", json!({})).await;
    assert_eq!(get(&server, READER, search).await["total"], 4);
    later(&server);
    assert_eq!(get(&server, READER, search).await["total"], 5);
}

#[tokio::test]
async fn sites_and_profiles_are_listed() {
    let server = start().await;
    for (token, tenant, site, camera) in [
        (ADMIN, "b", "north", "c1"),
        (ADMIN, "b", "north", "c2"),
        (TENANT_A, "a", "south", "c3"),
    ] {
        let path = format!("/api/v1/tenants/{tenant}/sites/{site}/cameras");
        let body = json!({"camera_uuid": camera, "rtsp_url": "rtsp://h/1"});
        assert_eq!(server.call(token, "POST", &path, body).await.0, 201);
    }
    let all = get(&server, ADMIN, "/api/v1/sites").await;
    let site = |tenant: &str, site: &str, cameras: u64| json!({"tenant_id": tenant, "site_id": site, "cameras": cameras, "zones": 0, "runners": 0});
    assert_eq!(
        all["sites"],
        json!([site("a", "south", 1), site("b", "north", 2)])
    );
    let bound = get(&server, TENANT_A, "/api/v1/sites").await;
    assert_eq!(bound["sites"], json!([site("a", "south", 1)]));
    let offer = get(&server, SESSIONS_ONLY, "/api/v3/profiles").await;
    assert_eq!(
        offer,
        json!({"profiles": ["auto", "high", "low", "virtual"], "lease_ttl": 60, "heartbeat_interval": 5})
    );
}
