//! Credentials and logins that are made at one replica hold at every other, and end there too.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::{sync::Arc, time::Duration};

use leasehold_clock::Manual;
use leasehold_server::{Options, auth::ADMIN_TOKEN_FILE};
use leasehold_store::embedded::{Embedded, Options as StoreOptions};
use leasehold_testkit::wait;
use reqwest::{Response, StatusCode};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;

use crate::{
    credentials::{cookie, upgrade},
    support::{LONG, Running, clock, options, start_on, start_pair},
};

/// May make credentials.
const MAKER: &str = "maker-secret-maker-secret";

fn with_maker() -> Options {
    let mut options = options();
    let everything = [
        "leases:admin",
        "runners:admin",
        "v3:admin",
        "credentials:admin",
    ];
    let spec = json!({"token": MAKER, "scopes": everything, "name": "maker"});
    options.tokens.push(serde_json::from_value(spec).unwrap());
    options
}

/// The id and the secret of a new credential.
async fn make(server: &Running, name: &str, more: Value) -> (String, String) {
    let mut wanted = json!({"name": name, "scopes": ["leases:write"]});
    for (field, value) in more.as_object().into_iter().flatten() {
        wanted[field] = value.clone();
    }
    let (status, made) = server
        .call(MAKER, "POST", "/api/v1/credentials", wanted)
        .await;
    assert_eq!(status, 201, "{made}");
    let text = |field: &str| made[field].as_str().unwrap().to_owned();
    (text("id"), text("secret"))
}

async fn look(server: &Running, secret: &str) -> (StatusCode, Value) {
    server
        .call(secret, "GET", "/api/v1/leases", Value::Null)
        .await
}

async fn revoke(server: &Running, id: &str) -> StatusCode {
    let path = format!("/api/v1/credentials/{id}");
    server.call(MAKER, "DELETE", &path, Value::Null).await.0
}

async fn with_cookie(server: &Running, cookie: &str) -> u16 {
    let request = server.http.get(format!("{}/api/v1/leases", server.url));
    let answer = request.header("cookie", cookie).send().await.unwrap();
    answer.status().as_u16()
}

async fn open_stream(server: &Running, secret: &str) -> Response {
    let request = server
        .http
        .get(format!("{}/api/v1/events/stream", server.url));
    let opened = request.bearer_auth(secret).send().await.unwrap();
    assert_eq!(opened.status(), 200);
    opened
}

/// How long the stream went on.
async fn ends(mut response: Response) -> Duration {
    let begun = tokio::time::Instant::now();
    let end = async { while response.chunk().await.is_ok_and(|chunk| chunk.is_some()) {} };
    tokio::time::timeout(LONG, end)
        .await
        .expect("the stream ends");
    begun.elapsed()
}

async fn a_login_at_one_replica_is_known_at_the_other() {
    let [one, two] = start_pair(with_maker()).await;
    let (id, secret) = make(&one, "page", json!({})).await;
    let login = cookie(&one, &secret).await;
    let configured = cookie(&one, MAKER).await;
    assert_eq!(with_cookie(&two, &login).await, 200);
    assert_eq!(with_cookie(&two, &configured).await, 200);
    // Logging out at one replica ends it at the other.
    let path = "/api/v3/auth/session";
    let request = two.http.delete(format!("{}{path}", two.url));
    let left = request.header("cookie", &configured).send().await.unwrap();
    assert_eq!(left.status(), 204);
    wait::until(LONG, "the login is over", async || {
        with_cookie(&one, &configured).await == 401
    })
    .await;
    // And so does the end of its credential.
    assert_eq!(revoke(&two, &id).await, 200);
    wait::until(LONG, "the login is over", async || {
        with_cookie(&one, &login).await == 401
    })
    .await;
    assert_eq!(with_cookie(&two, &login).await, 401);
}

async fn a_revocation_at_one_replica_ends_streams_at_the_other() {
    let [one, two] = start_pair(with_maker()).await;
    let (id, secret) = make(&one, "gone", json!({})).await;
    let (_, kept) = make(&one, "kept", json!({})).await;
    let stream = open_stream(&two, &secret).await;
    let mut other = open_stream(&two, &kept).await;
    let (mut socket, head) = upgrade(&two, &format!("Authorization: Bearer {secret}\r\n")).await;
    assert!(head.contains(" 101 "), "{head}");
    assert_eq!(revoke(&one, &id).await, 200);
    ends(stream).await;
    let mut rest = Vec::new();
    let end = tokio::time::timeout(LONG, socket.read_to_end(&mut rest));
    assert!(end.await.is_ok(), "the holder's stream ends");
    assert_eq!(look(&two, &secret).await.0, 401);
    assert_eq!(revoke(&two, &id).await, 404, "it is revoked already");
    // Another credential's stream goes on.
    assert!(other.chunk().await.unwrap().is_some());
    let more = tokio::time::timeout(Duration::from_millis(300), other.chunk()).await;
    assert!(!matches!(more, Ok(Ok(None) | Err(_))), "{more:?}");
}

async fn an_expired_credential_is_refused_everywhere() {
    let [one, two] = start_pair(with_maker()).await;
    let life = one.either(86_400_000, 3_000);
    let wanted = json!({"expires_in_seconds": life / 1_000});
    let (id, secret) = make(&one, "short", wanted).await;
    let stream = open_stream(&two, &secret).await;
    let login = cookie(&one, &secret).await;
    assert_eq!(look(&two, &secret).await.0, 200);
    one.pass(life, life).await;
    ends(stream).await;
    for replica in [&one, &two] {
        let (status, problem) = look(replica, &secret).await;
        assert_eq!(status, 401, "{problem}");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains("expired at"), "{problem}");
        assert_eq!(with_cookie(replica, &login).await, 401);
    }
    let (_, all) = two
        .call(MAKER, "GET", "/api/v1/credentials", Value::Null)
        .await;
    let listed = &all["credentials"][0];
    assert_eq!(
        (&listed["id"], &listed["state"]),
        (&json!(id), &json!("expired"))
    );
    assert!(!all.to_string().contains(&secret));
}

async fn a_rotated_credential_has_two_secrets_for_its_grace() {
    let [one, two] = start_pair(with_maker()).await;
    let (id, first) = make(&one, "ci", json!({})).await;
    let login = cookie(&one, &first).await;
    let stream = open_stream(&two, &first).await;
    let path = format!("/api/v1/credentials/{id}/rotate");
    let grace = one.either(3_600_000, 3_000);
    let rotate = async |grace: u64| {
        let wanted = json!({"grace_seconds": grace / 1_000});
        let (status, rotated) = one.call(MAKER, "POST", &path, wanted).await;
        assert_eq!(status, 200, "{rotated}");
        assert_eq!(rotated["id"], json!(id));
        rotated["secret"].as_str().unwrap().to_owned()
    };
    let second = rotate(grace).await;
    for secret in [&first, &second] {
        assert_eq!(look(&two, secret).await.0, 200);
    }
    one.pass(grace, grace).await;
    ends(stream).await;
    let (status, problem) = look(&two, &first).await;
    assert_eq!(status, 401);
    assert!(problem["detail"].as_str().unwrap().contains("replaced"));
    assert_eq!(look(&two, &second).await.0, 200);
    assert_eq!(with_cookie(&two, &login).await, 200, "its login goes on");
    // Without a grace the one before is refused immediately.
    let third = rotate(0).await;
    assert_eq!(look(&one, &second).await.0, 401);
    assert_eq!(look(&two, &third).await.0, 200);
    wait::until(LONG, "refused at the other replica", async || {
        look(&two, &second).await.0 == 401
    })
    .await;
}

async fn nobody_makes_more_than_it_has_nor_reads_what_servers_keep() {
    let [one, _two] = start_pair(with_maker()).await;
    let (id, weak) = make(&one, "weak", json!({"scopes": ["credentials:admin"]})).await;
    cookie(&one, &weak).await;
    let wanted = json!({"name": "strong", "scopes": ["leases:read"]});
    let (status, _) = one.call(&weak, "POST", "/api/v1/credentials", wanted).await;
    assert_eq!(status, 403, "a credential gives no more than it has");
    for (wrong, field) in [
        (json!({"name": "", "scopes": ["leases:read"]}), "name"),
        (json!({"name": "x", "scopes": []}), "scopes"),
        (json!({"name": "x", "scopes": ["leases"]}), "scopes"),
        (
            json!({"name": "x", "scopes": ["leases:read"], "expires_in_seconds": 0}),
            "expires_in_seconds",
        ),
    ] {
        let (status, problem) = one.call(MAKER, "POST", "/api/v1/credentials", wrong).await;
        assert_eq!(status, 400, "{problem}");
        assert_eq!(problem["errors"][0]["field"], field, "{problem}");
    }
    let kernel = async |method: &str, body: Value| {
        let path = format!("/api/v1/authority/{method}");
        one.call(MAKER, "POST", &path, body).await
    };
    let key = format!("credential:{id}");
    assert_eq!(
        kernel("record", json!(key)).await,
        (StatusCode::OK, Value::Null)
    );
    for kind in ["credential", "login"] {
        let query = json!({"kind": kind, "prefix": "", "after": null, "limit": 10});
        let (status, page) = kernel("records", query).await;
        assert_eq!((status, &page["items"]), (StatusCode::OK, &json!([])));
    }
    let forged = json!({"expect": [], "writes": [{"key": "credential:x", "value": "{}"}]});
    assert_eq!(kernel("commit", forged).await.0, 403);
    let (_, page) = one.call(MAKER, "GET", "/api/v1/events", Value::Null).await;
    assert!(!page.to_string().contains("credential:"), "{page}");
    // Neither a change nor a snapshot shows it on a stream.
    for from in ["after=0", "after=1000000"] {
        let request = one
            .http
            .get(format!("{}/api/v1/events/stream?{from}", one.url));
        let mut stream = request.bearer_auth(MAKER).send().await.unwrap();
        one.acquire("job", from, "h").await;
        let mut seen = String::new();
        while !seen.contains("job") {
            let chunk = tokio::time::timeout(LONG, stream.chunk()).await.unwrap();
            seen.push_str(&String::from_utf8_lossy(&chunk.unwrap().unwrap()));
        }
        assert!(
            !seen.contains("credential:") && !seen.contains("login:"),
            "{seen}"
        );
    }
}

on_every_backend!(
    a_login_at_one_replica_is_known_at_the_other,
    a_revocation_at_one_replica_ends_streams_at_the_other,
    an_expired_credential_is_refused_everywhere,
    a_rotated_credential_has_two_secrets_for_its_grace,
    nobody_makes_more_than_it_has_nor_reads_what_servers_keep,
);

async fn on_disk(dir: &std::path::Path, clock: &Manual) -> (Embedded, Running) {
    let stored = StoreOptions {
        dir: dir.join("store"),
        ..StoreOptions::default()
    };
    let opened = Embedded::open(stored, Arc::new(clock.clone())).await;
    let store = opened.unwrap();
    let mut options = options();
    options.tokens.clear();
    options.data_dir = Some(dir.to_owned());
    let server = start_on(options, clock.clone(), Arc::new(store.clone())).await;
    (store, server)
}

#[tokio::test]
async fn credentials_and_logins_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let clock = clock();
    // What an older version left is moved into the store, and only once.
    let older = json!([{"id": "0123456789ab", "name": "older", "scopes": ["leases:read"],
        "sha256": "9e2ddb96b4caa5ab0ecdc08a17c2dd2ed2dcdfe4dc0d28aa2bd1ec4bb32a9ea2",
        "created_at": "2026-01-31T12:00:00Z"}]);
    std::fs::write(dir.path().join("tokens.json"), older.to_string()).unwrap();
    let (store, mut server) = on_disk(dir.path(), &clock).await;
    let admin = std::fs::read_to_string(dir.path().join(ADMIN_TOKEN_FILE)).unwrap();
    let admin = admin.trim();
    let make = async |server: &Running, name: &str| {
        let wanted = json!({"name": name, "scopes": ["leases:read"]});
        let made = server.call(admin, "POST", "/api/v1/credentials", wanted);
        let (status, made) = made.await;
        assert_eq!(status, 201, "{made}");
        made
    };
    let (kept, gone) = (make(&server, "kept").await, make(&server, "gone").await);
    let secret = |made: &Value| made["secret"].as_str().unwrap().to_owned();
    let login = cookie(&server, &secret(&kept)).await;
    for id in [gone["id"].as_str().unwrap(), "0123456789ab"] {
        let path = format!("/api/v1/credentials/{id}");
        let (status, _) = server.call(admin, "DELETE", &path, Value::Null).await;
        assert_eq!(status, 200);
    }
    server.tell_to_stop();
    server.stopped().await;
    store.close().await.unwrap();

    let (_store, server) = on_disk(dir.path(), &clock).await;
    assert_eq!(look(&server, admin).await.0, 200);
    assert_eq!(look(&server, &secret(&kept)).await.0, 200);
    assert_eq!(look(&server, &secret(&gone)).await.0, 401);
    assert_eq!(with_cookie(&server, &login).await, 200);
    let (_, all) = server
        .call(admin, "GET", "/api/v1/credentials", Value::Null)
        .await;
    let states: Vec<_> = all["credentials"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| (it["name"].as_str().unwrap(), it["state"].as_str().unwrap()))
        .collect();
    assert!(states.contains(&("older", "revoked")), "{states:?}");
    // A login that nobody used for half a day is over.
    clock.advance(12 * 3_600_000);
    assert_eq!(with_cookie(&server, &login).await, 401);
}
