//! Who is let in, how far, and that nothing happens when somebody is not.

use std::sync::{Arc, atomic::Ordering};

use lease::{Acquire, Holder, Ttl};
use leasehold_server::{Server, auth::ADMIN_TOKEN_FILE};
use serde_json::{Value, json};

use crate::support::{
    self, ADMIN, POWERLESS, READER, SESSIONS_ONLY, TENANT_A, TENANT_B, WRITER, clock,
    guarded::Guarded, memory, options, start, start_on, start_with,
};

/// Every operation that changes something, with a body that would be accepted.
fn writes(id: &str) -> Vec<(&'static str, String, Value)> {
    let holder = json!({"name": "h", "incarnation": "0"});
    let kernel = |method: &str, body: Value| ("POST", format!("/api/v1/authority/{method}"), body);
    let lease = json!({"key": "job:x", "token": 1, "holder": holder});
    vec![
        (
            "POST",
            "/api/v1/leases/acquire/".into(),
            json!({"kind": "job", "id": "y", "holder": "h"}),
        ),
        (
            "POST",
            "/api/v1/leases/renew/".into(),
            json!({"holder": "h"}),
        ),
        ("PUT", format!("/api/v1/leases/{id}/renew/"), json!({})),
        ("POST", format!("/api/v1/leases/{id}/heartbeat/"), json!({})),
        (
            "DELETE",
            format!("/api/v1/leases/{id}/release/"),
            Value::Null,
        ),
        (
            "POST",
            format!("/api/v1/leases/{id}/revoke/"),
            json!({"reason": "why"}),
        ),
        ("PUT", "/api/v1/holders/h/".into(), json!({})),
        ("DELETE", "/api/v1/holders/h/".into(), Value::Null),
        kernel(
            "acquire",
            json!({"want": {"all": ["job:y"]}, "holder": holder, "ttl": 1000}),
        ),
        kernel("renew", json!({"holder": holder, "leases": "all"})),
        kernel("release", lease.clone()),
        kernel("revoke", json!({"id": id, "reason": "why"})),
        kernel("depart", json!({"left": holder})),
        kernel("handoff", json!({"step": "commit", "lease": lease})),
        kernel(
            "commit",
            json!({"expect": [], "writes": [{"key": "a:b", "value": "{}"}]}),
        ),
    ]
}

#[tokio::test]
async fn a_rejected_request_has_no_side_effect_at_all() {
    let clock = clock();
    let inner = memory(&clock);
    let holder = Holder::new("h", "0").unwrap();
    let key = "job:x".parse().unwrap();
    let granted = inner
        .acquire(Acquire::one(key, holder, Ttl::from_secs(60).unwrap()))
        .await
        .unwrap();
    let lease::Acquired::Granted { leases, .. } = granted else {
        panic!("the key is free")
    };
    let guarded = Guarded::new(inner);
    let server = start_on(options(), clock, guarded.clone()).await;
    for (method, path, body) in writes(&leases[0].id.to_string()) {
        for (token, expected) in [
            ("", 401),
            ("never-seen", 401),
            (POWERLESS, 401),
            (SESSIONS_ONLY, 403),
            (READER, 403),
        ] {
            let (status, problem) = server.call(token, method, &path, body.clone()).await;
            assert_eq!(
                status, expected,
                "{method} {path} with {token:?}: {problem}"
            );
            let code = if expected == 401 {
                "AUTHENTICATION_FAILED"
            } else {
                "AUTHORIZATION_FAILED"
            };
            assert_eq!(problem["code"], code, "{method} {path}");
        }
    }
    assert_eq!(guarded.writes.load(Ordering::SeqCst), 0);
    // And the guard does guard: with enough scope the write arrives.
    let body = json!({"kind": "job", "id": "y", "holder": "h"});
    server
        .call(WRITER, "POST", "/api/v1/leases/acquire/", body)
        .await;
    assert_eq!(guarded.writes.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_tenant_sees_and_reaches_only_its_own() {
    let server = start().await;
    let acquire = |token, body: Value| server.call(token, "POST", "/api/v1/leases/acquire/", body);
    let (status, lease) = acquire(
        TENANT_A,
        json!({"kind": "job", "id": "x", "holder": "secret-name"}),
    )
    .await;
    assert_eq!((status.as_u16(), &lease["tenant_id"]), (200, &json!("a")));
    let id = lease["lease_id"].as_str().unwrap();

    let (status, refused) =
        acquire(TENANT_B, json!({"kind": "job", "id": "x", "holder": "b"})).await;
    assert_eq!(status, 409);
    assert!(!refused.to_string().contains("secret-name"), "{refused}");
    let (status, _) = acquire(
        TENANT_B,
        json!({"kind": "job", "id": "z", "holder": "b", "tenant_id": "a"}),
    )
    .await;
    assert_eq!(status, 403);

    for (method, verb, body) in [
        ("GET", "", Value::Null),
        ("PUT", "renew/", json!({})),
        ("DELETE", "release/", Value::Null),
        ("POST", "revoke/", json!({"reason": "r"})),
    ] {
        let (status, _) = server
            .call(
                TENANT_B,
                method,
                &format!("/api/v1/leases/{id}/{verb}"),
                body,
            )
            .await;
        assert_eq!(status, 404, "{method} {verb}");
    }
    let (_, list) = server
        .call(TENANT_B, "GET", "/api/v1/leases/", Value::Null)
        .await;
    assert_eq!(list["leases"], json!([]));
    let (_, events) = server
        .call(TENANT_B, "GET", "/api/v1/events/", Value::Null)
        .await;
    assert_eq!(events["events"], json!([]));
    let (_, renewed) = server
        .call(
            TENANT_B,
            "POST",
            "/api/v1/leases/renew/",
            json!({"holder": "secret-name",
        "leases": [{"kind": "job", "id": "x", "token": lease["token"]}]}),
        )
        .await;
    assert_eq!(renewed["results"][0]["loss"]["reason"], "unknown");

    let kernel = |method: &str, body: Value| {
        let path = format!("/api/v1/authority/{method}");
        let server = &server;
        async move { server.call(TENANT_B, "POST", &path, body).await }
    };
    assert_eq!(kernel("lease", json!("job:x")).await.1, Value::Null);
    let holder = json!({"name": "secret-name", "incarnation": "0"});
    assert_eq!(
        kernel(
            "release",
            json!({"key": "job:x", "token": lease["token"], "holder": holder})
        )
        .await
        .1,
        json!(false)
    );
    // Its namesake in another tenant is somebody else, and keeps what it has.
    let departed = kernel("depart", json!({"left": holder})).await;
    assert_eq!((departed.0.as_u16(), departed.1), (200, json!([])));
    let path = format!("/api/v1/leases/{id}/");
    let (status, kept) = server.call(ADMIN, "GET", &path, Value::Null).await;
    assert_eq!((status.as_u16(), &kept["status"]), (200, &json!("active")));
    assert_eq!(
        kernel(
            "records",
            json!({"kind": "a", "prefix": "", "after": null, "limit": 1})
        )
        .await
        .0,
        403
    );
    assert_eq!(
        kernel("leases", json!({"tenant": "a", "limit": 1})).await.0,
        403
    );
    let (_, refused) = kernel("acquire", json!({"want": {"all": ["job:x"]}, "holder": {"name": "b", "incarnation": "0"}, "ttl": 1000})).await;
    assert!(
        refused["refused"].is_object() && !refused.to_string().contains("secret-name"),
        "{refused}"
    );
    // Still there, and its own tenant reaches it.
    let (status, _) = server
        .call(
            TENANT_A,
            "PUT",
            &format!("/api/v1/leases/{id}/renew/"),
            json!({}),
        )
        .await;
    assert_eq!(status, 200);
}

#[tokio::test]
async fn the_first_start_makes_an_administrator_s_token_and_changes_need_no_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options();
    options.tokens.clear();
    options.data_dir = Some(dir.path().to_owned());
    let server = start_with(options.clone()).await;
    let secret = std::fs::read_to_string(dir.path().join(ADMIN_TOKEN_FILE)).unwrap();
    let secret = secret.trim();
    assert_eq!(
        server
            .call("", "GET", "/api/v1/leases/", Value::Null)
            .await
            .0,
        401
    );
    assert_eq!(
        server
            .call(secret, "GET", "/api/v1/leases/", Value::Null)
            .await
            .0,
        200
    );

    let wanted = json!({"name": "ci", "scopes": ["leases:read"]});
    let (status, made) = server
        .call(secret, "POST", "/api/v1/credentials", wanted)
        .await;
    assert_eq!(status, 201, "{made}");
    let (token, id) = (
        made["secret"].as_str().unwrap(),
        made["id"].as_str().unwrap(),
    );
    let look = async |token: &str| {
        let looked = server.call(token, "GET", "/api/v1/leases/", Value::Null);
        looked.await.0
    };
    assert_eq!(look(token).await, 200);
    let path = format!("/api/v1/credentials/{id}");
    assert_eq!(
        server.call(secret, "DELETE", &path, Value::Null).await.0,
        200
    );
    assert_eq!(look(token).await, 401);

    // Another store does not know the folder's administrator yet, and lets it in; one that revoked it
    // does not.
    let other = start_with(options.clone()).await;
    let looked = other.call(secret, "GET", "/api/v1/leases", Value::Null);
    assert_eq!(looked.await.0, 200);
    let (_, all) = server
        .call(secret, "GET", "/api/v1/credentials", Value::Null)
        .await;
    let listed = all["credentials"].as_array().unwrap();
    let admin = listed.iter().find(|it| it["name"] == "admin").unwrap();
    let admin = admin["id"].as_str().unwrap();
    let path = format!("/api/v1/credentials/{admin}");
    assert_eq!(
        server.call(secret, "DELETE", &path, Value::Null).await.0,
        200
    );
    let again = support::start_on(
        options.clone(),
        server.clock.clone(),
        server.authority.clone(),
    );
    let again = again.await;
    let looked = again.call(secret, "GET", "/api/v1/leases", Value::Null);
    assert_eq!(looked.await.0, 401);

    // Without a folder and without a token nothing is open.
    options.data_dir = None;
    let refused = Server::builder()
        .options(options)
        .authority(server.authority.clone())
        .clock(Arc::new(server.clock.clone()))
        .bind()
        .await;
    assert!(refused.is_err());
}

#[tokio::test]
async fn the_page_logs_in_with_a_cookie() {
    let server = start().await;
    let path = "/api/v3/auth/session";
    assert_eq!(server.call("", "POST", path, Value::Null).await.0, 401);
    let response = server.send(ADMIN, reqwest::Method::POST, path, None).await;
    assert_eq!(response.status(), 204);
    let cookie = response.headers()["set-cookie"]
        .to_str()
        .unwrap()
        .to_owned();
    assert!(
        cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"),
        "{cookie}"
    );
    assert!(!cookie.contains("Secure") && !cookie.contains(ADMIN));
    let pair = cookie.split(';').next().unwrap().to_owned();
    let with_cookie = |method: reqwest::Method, path: &str, origin: &str| {
        let mut request = server
            .http
            .request(method, format!("{}{path}", server.url))
            .header("cookie", &pair);
        if !origin.is_empty() {
            request = request.header("origin", origin);
        }
        async { request.send().await.unwrap().status().as_u16() }
    };
    assert_eq!(
        with_cookie(reqwest::Method::GET, "/api/v1/leases", "").await,
        200
    );
    assert_eq!(
        with_cookie(
            reqwest::Method::POST,
            "/api/v1/leases/renew",
            "http://evil.example"
        )
        .await,
        401
    );
    assert_eq!(
        with_cookie(reqwest::Method::POST, "/api/v1/leases/renew", &server.url).await,
        400
    );
    assert_eq!(
        with_cookie(reqwest::Method::DELETE, path, &server.url).await,
        204
    );
    assert_eq!(
        with_cookie(reqwest::Method::GET, "/api/v1/leases", "").await,
        401
    );
}

#[tokio::test]
async fn the_guard_believes_only_trusted_proxies() {
    let mut options = options();
    options.lan_guard = Some(leasehold_server::GuardOptions {
        allow: Some(vec!["10.0.0.0/8".into()]),
    });
    let server = start_with(options.clone()).await;
    let from = |server: &support::Running, forwarded: &str| {
        let request = server
            .http
            .get(format!("{}/healthz", server.url))
            .header("x-forwarded-for", forwarded);
        async { request.send().await.unwrap().status().as_u16() }
    };
    // The peer is loopback, which this guard does not allow, whatever it says about itself.
    assert_eq!(from(&server, "10.0.0.1").await, 403);
    options.trusted_proxies = vec!["127.0.0.1".into()];
    let server = start_with(options.clone()).await;
    assert_eq!(from(&server, "10.0.0.1").await, 200);
    assert_eq!(from(&server, "10.0.0.1, 8.8.8.8").await, 403);
    options.trusted_proxies = vec!["0.0.0.0/0".into()];
    let refused = Server::builder()
        .options(options)
        .authority(server.authority.clone())
        .clock(Arc::new(server.clock.clone()))
        .bind()
        .await;
    assert!(refused.is_err());
}

#[tokio::test]
async fn an_open_address_needs_tls_and_the_generated_certificate_works() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options();
    options.listen = ([0, 0, 0, 0], 0).into();
    let clock = clock();
    let authority = memory(&clock);
    let bind = |options| {
        Server::builder()
            .options(options)
            .authority(authority.clone())
            .clock(Arc::new(clock.clone()))
            .bind()
    };
    assert!(matches!(
        bind(options.clone()).await,
        Err(leasehold_server::Error::Unencrypted(_))
    ));
    options.insecure_listen = true;
    assert!(bind(options.clone()).await.is_ok());
    options.insecure_listen = false;
    options.listen = ([127, 0, 0, 1], 0).into();
    options.data_dir = Some(dir.path().to_owned());
    options.tls = Some(leasehold_server::TlsOptions {
        self_signed: true,
        ..Default::default()
    });
    let server = start_with(options).await;
    assert!(server.url.starts_with("https://"));
    let response = server
        .send(ADMIN, reqwest::Method::POST, "/api/v3/auth/session", None)
        .await;
    assert_eq!(response.status(), 204);
    assert!(
        response.headers()["set-cookie"]
            .to_str()
            .unwrap()
            .contains("; Secure")
    );
    assert!(dir.path().join("dev-cert.pem").exists());
}
