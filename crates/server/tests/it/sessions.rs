//! Intents and sessions over HTTP, over the in-memory store with a clock moved by hand. No
//! worker runs here: the API alone accepts, deduplicates and keeps sessions alive.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::Ordering},
};

use lease::{EventCause, EventKind, EventQuery, LeaseQuery, RecordQuery, Status, session::State};
use leasehold_server::SessionOptions;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{self, ADMIN, READER, Running, TENANT_A, TENANT_B, guarded::Guarded, options};

const WRITE: &str = "v3-write-secret";
const READ: &str = "v3-read-secret";
const NOBODY: &str = "0199a0a0-0000-8000-8000-000000000000";

/// With tokens for sessions.
fn tokens(mut options: leasehold_server::Options) -> leasehold_server::Options {
    for (secret, scope, tenant) in [
        (WRITE, "v3:write", None),
        (READ, "v3:read", None),
        ("a-v3", "v3:admin", Some("a")),
        ("b-v3", "v3:admin", Some("b")),
    ] {
        let token = json!({"token": secret, "scopes": [scope], "tenant": tenant});
        options.tokens.push(serde_json::from_value(token).unwrap());
    }
    options
}

async fn start_with(sessions: SessionOptions) -> Running {
    let mut options = tokens(options());
    options.sessions = sessions;
    support::start_with(options).await
}

async fn start() -> Running {
    start_with(SessionOptions::default()).await
}

fn live(service: &str, profile: &str) -> Value {
    json!({"type": "stream.start", "service_ref": service, "profile": profile})
}

async fn intent(server: &Running, body: Value) -> (u16, Value) {
    let (status, answer) = server.call(WRITE, "POST", "/api/v3/intents", body).await;
    (status.as_u16(), answer)
}

async fn get(server: &Running, id: &str) -> (u16, Value) {
    let path = format!("/api/v3/sessions/{id}");
    let (status, answer) = server.call(READ, "GET", &path, Value::Null).await;
    (status.as_u16(), answer)
}

async fn beat(server: &Running, id: &str) -> (u16, Value) {
    let path = format!("/api/v3/sessions/{id}/heartbeat");
    let (status, answer) = server.call(READ, "POST", &path, Value::Null).await;
    (status.as_u16(), answer)
}

fn id(answer: &Value) -> String {
    answer["session_id"].as_str().unwrap().to_owned()
}

async fn leases(server: &Running, kind: Option<&str>) -> Vec<lease::Lease> {
    let query = LeaseQuery {
        kind: kind.map(str::to_owned),
        status: Some(Status::Active),
        limit: 100,
        ..LeaseQuery::default()
    };
    server.authority.leases(query).await.unwrap().items
}

async fn events(server: &Running) -> Vec<lease::Event> {
    let query = EventQuery {
        limit: 1000,
        ..EventQuery::default()
    };
    server.authority.events(query).await.unwrap().events
}

#[tokio::test]
async fn a_start_is_written_down_and_nothing_more() {
    let server = start().await;
    let (status, answer) = intent(&server, live("1:0:19:132F", "high")).await;
    assert_eq!(status, 202, "{answer}");
    assert_eq!(answer["status"], "accepted");
    assert_eq!(answer["state"], "new");
    assert_eq!(answer["heartbeat_interval"], 5);
    assert_eq!(answer["lease_expires_at"], "2027-01-15T08:01:00.000Z");
    assert!(!answer["correlation_id"].as_str().unwrap().is_empty());
    let (status, session) = get(&server, &id(&answer)).await;
    assert_eq!(status, 200);
    assert_eq!(session["service_ref"], "1:0:19:132F");
    assert_eq!(session["lease_expires_at"], answer["lease_expires_at"]);
    assert_eq!(session.get("reason"), None);
    // The API never takes a lease of the service or of a tuner.
    let leases = leases(&server, None).await;
    let kinds: Vec<&str> = leases.iter().map(|lease| lease.key.kind()).collect();
    assert_eq!(kinds, ["session"]);
}

#[tokio::test]
async fn two_hundred_identical_starts_are_one_session() {
    let server = Arc::new(start().await);
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..200 {
        let server = server.clone();
        calls.spawn(async move { intent(&server, live("channel", "auto")).await });
    }
    let answers = calls.join_all().await;
    assert!(answers.iter().all(|(status, _)| *status == 202));
    let ids: BTreeSet<String> = answers.iter().map(|(_, answer)| id(answer)).collect();
    assert_eq!(ids.len(), 1);
    let correlations = answers.iter().map(|(_, a)| a["correlation_id"].to_string());
    let correlations: BTreeSet<String> = correlations.collect();
    assert_eq!(correlations.len(), 1, "a replay returns the original's");
    let accepted = answers.iter().filter(|(_, a)| a["status"] == "accepted");
    assert_eq!(accepted.count(), 1);
    let starts = events(&server).await.into_iter().filter(|event| {
        event.kind == EventKind::RecordPut && event.cause == Some(EventCause::Session(State::New))
    });
    assert_eq!(starts.count(), 1);
    assert_eq!(leases(&server, None).await.len(), 1);
}

#[tokio::test]
async fn buckets_tell_catch_up_streams_apart_by_whole_seconds() {
    let server = start().await;
    let at = |start_ms: u64| {
        let mut body = live("channel", "auto");
        body["startMs"] = json!(start_ms);
        body
    };
    let (_, live_zero) = intent(&server, at(0)).await;
    let (_, plain) = intent(&server, live("channel", "auto")).await;
    assert_eq!(id(&live_zero), id(&plain));
    let (_, first) = intent(&server, at(61_000)).await;
    let (_, same) = intent(&server, at(61_999)).await;
    let (_, next) = intent(&server, at(62_000)).await;
    assert_eq!(id(&first), id(&same));
    assert_ne!(id(&first), id(&next));
    assert_ne!(id(&first), id(&plain));
}

#[tokio::test]
async fn wrong_requests_name_their_fields_and_change_nothing() {
    let server = start().await;
    let with = |field: &str, value: Value| {
        let mut body = json!({"service_ref": "x", "profile": "auto"});
        body[field] = value;
        body
    };
    for (body, field) in [
        (json!({"profile": "auto"}), "service_ref"),
        (json!({"service_ref": "x"}), "profile"),
        (with("service_ref", json!("a b")), "service_ref"),
        (with("service_ref", json!("a\u{7}")), "service_ref"),
        (with("service_ref", json!("x".repeat(257))), "service_ref"),
        (with("profile", json!("a/b")), "profile"),
        (with("profile", json!("unheard-of")), "profile"),
        (with("start_ms", json!(-1)), "start_ms"),
        (with("start_ms", json!(1.5)), "start_ms"),
        (with("what", json!(1)), "what"),
        (with("correlation_id", json!("a b")), "correlation_id"),
        (with("params", json!({"mode": "RECORDING"})), "params.mode"),
        (with("params", json!({"mode": "live"})), "params.mode"),
        (json!({"type": "stream.pause"}), "type"),
        (json!({"type": "stream.stop"}), "session_id"),
    ] {
        let (status, problem) = intent(&server, body.clone()).await;
        assert_eq!(status, 400, "{body}: {problem}");
        assert_eq!(problem["errors"][0]["field"], field, "{body}: {problem}");
    }
    let large = with("profile", json!("y".repeat(1024 * 1024 + 1)));
    assert_eq!(intent(&server, large).await.0, 413);
    let text = server
        .http
        .post(format!("{}/api/v3/intents", server.url))
        .bearer_auth(WRITE)
        .header("content-type", "text/plain")
        .body("{}");
    assert_eq!(text.send().await.unwrap().status(), 415);
    assert_eq!(events(&server).await, []);
}

/// Every route of the interface, with what it takes to be let in.
fn routes(id: &str) -> Vec<(&'static str, String, Value, &'static str)> {
    let stop = json!({"type": "stream.stop", "session_id": id});
    let one = format!("/api/v3/sessions/{id}");
    vec![
        ("POST", "/api/v3/intents".into(), live("x", "auto"), "write"),
        ("POST", "/api/v3/intents".into(), stop, "write"),
        ("POST", format!("{one}/heartbeat"), Value::Null, "read"),
        ("GET", format!("{one}/hls/index.m3u8"), Value::Null, "read"),
        ("GET", format!("{one}/hls/seg.ts"), Value::Null, "read"),
        ("GET", format!("{one}/events"), Value::Null, "read"),
        ("GET", one, Value::Null, "read"),
        ("GET", "/api/v3/sessions".into(), Value::Null, "admin"),
    ]
}

/// A server that would fail every write, with a session from before.
async fn guarded(mut options: leasehold_server::Options) -> (Running, Arc<Guarded>, String) {
    let clock = support::clock();
    let authority = support::memory(&clock);
    let before = support::start_on(tokens(support::options()), clock.clone(), authority.clone());
    let (_, session) = intent(&before.await, live("before", "auto")).await;
    let store = Guarded::new(authority);
    options = tokens(options);
    let server = support::start_on(options, clock, store.clone()).await;
    (server, store, id(&session))
}

#[tokio::test]
async fn rejected_requests_have_no_side_effect_on_any_route() {
    let (server, store, session) = guarded(options()).await;
    for (method, path, body, scope) in routes(&session) {
        let too_little: &[&str] = match scope {
            "read" => &[READER],
            "write" => &[READER, READ],
            _ => &[READER, READ, WRITE],
        };
        let unknown = ["", "never-seen", "powerless-secret"].map(|token| (token, 401));
        let known = too_little.iter().map(|token| (*token, 403));
        for (token, expected) in unknown.into_iter().chain(known) {
            let (status, problem) = server.call(token, method, &path, body.clone()).await;
            assert_eq!(status, expected, "{method} {path} {token:?}: {problem}");
        }
    }
    // Of another tenant, it is not there.
    for (method, path, body, _) in routes(&session).into_iter().skip(1).take(6) {
        let (status, problem) = server.call("a-v3", method, &path, body).await;
        assert_eq!(status, 404, "{method} {path}: {problem}");
    }
    assert_eq!(store.writes.load(Ordering::SeqCst), 0);
    // And the guard does guard: with enough scope the write arrives.
    server
        .call(WRITE, "POST", "/api/v3/intents", live("x", "auto"))
        .await;
    assert_eq!(store.writes.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn wrong_requests_have_no_side_effect_on_any_route() {
    let (server, store, session) = guarded(options()).await;
    let one = format!("/api/v3/sessions/{session}");
    let intents = "/api/v3/intents";
    for (method, path, body, expected) in [
        (
            "POST",
            intents,
            json!({"service_ref": "a b", "profile": "auto"}),
            400,
        ),
        (
            "POST",
            intents,
            json!({"service_ref": "x", "profile": "no"}),
            400,
        ),
        ("POST", intents, json!({"type": "stream.stop"}), 400),
        (
            "POST",
            intents,
            json!({"type": "stream.stop", "session_id": NOBODY}),
            404,
        ),
        ("POST", intents, json!([]), 400),
        ("POST", intents, Value::Null, 400),
        ("DELETE", intents, Value::Null, 405),
        ("GET", "/api/v3/sessions?state=odd", Value::Null, 400),
        ("GET", "/api/v3/sessions?limit=0", Value::Null, 400),
        ("GET", "/api/v3/sessions?what=1", Value::Null, 400),
        ("GET", "/api/v3/sessions/no-uuid", Value::Null, 404),
        (
            "POST",
            "/api/v3/sessions/no-uuid/heartbeat",
            Value::Null,
            404,
        ),
        ("GET", &format!("{one}/heartbeat"), Value::Null, 405),
        (
            "GET",
            &format!("{one}/hls/..%2F..%2Fetc%2Fpasswd"),
            Value::Null,
            404,
        ),
        ("GET", &format!("{one}/hls/x.exe"), Value::Null, 404),
    ] {
        let (status, problem) = server.call(ADMIN, method, path, body).await;
        assert_eq!(status, expected, "{method} {path}: {problem}");
    }
    let large = json!({"service_ref": "x".repeat(1024 * 1024 + 1), "profile": "auto"});
    assert_eq!(server.call(ADMIN, "POST", intents, large).await.0, 413);
    assert_eq!(store.writes.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn the_lan_guard_keeps_strangers_from_every_route() {
    let mut only_elsewhere = options();
    let allow = vec!["192.0.2.0/24".to_owned()];
    only_elsewhere.lan_guard = Some(leasehold_server::GuardOptions { allow: Some(allow) });
    let (server, store, session) = guarded(only_elsewhere).await;
    for (method, path, body, _) in routes(&session) {
        for token in [ADMIN, ""] {
            let (status, problem) = server.call(token, method, &path, body.clone()).await;
            assert_eq!(status, 403, "{method} {path}: {problem}");
        }
    }
    let login = server.call(ADMIN, "POST", "/api/v3/auth/session", Value::Null);
    assert_eq!(login.await.0, 403);
    assert_eq!(store.writes.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn heartbeats_extend_and_never_revive() {
    let server = start().await;
    let (_, answer) = intent(&server, live("channel", "auto")).await;
    let id = id(&answer);
    server.clock.advance(30_000);
    let (status, first) = beat(&server, &id).await;
    assert_eq!(status, 200, "{first}");
    assert_eq!(first["acknowledged"], true);
    assert_eq!(first["lease_expires_at"], "2027-01-15T08:01:30.000Z");
    // Twice within half the interval of 5 s: the same expiry.
    server.clock.advance(2_499);
    let (status, second) = beat(&server, &id).await;
    assert_eq!((status, &second), (200, &first));
    server.clock.advance(1);
    let (_, third) = beat(&server, &id).await;
    assert_eq!(third["lease_expires_at"], "2027-01-15T08:01:32.500Z");
    let (_, session) = get(&server, &id).await;
    assert_eq!(session["last_heartbeat"], "2027-01-15T08:00:32.500Z");

    server.clock.advance(60_000);
    let (status, problem) = beat(&server, &id).await;
    assert_eq!((status, &problem["code"]), (410, &json!("SESSION_EXPIRED")));
    // No worker has seen it yet.
    assert_eq!(problem["state"], "new", "{problem}");
    // Still known, and until when it lived.
    let (status, session) = get(&server, &id).await;
    assert_eq!(status, 200);
    assert_eq!(session["lease_expires_at"], "2027-01-15T08:01:32.500Z");
    assert_eq!(beat(&server, NOBODY).await.0, 404);
    assert_eq!(beat(&server, "no-uuid").await.0, 404);
    let (_, metrics) = server.call("", "GET", "/metrics", Value::Null).await;
    let metrics = metrics.as_str().unwrap_or_default().to_owned();
    for line in [
        "xg2g_sessions_heartbeat_total 3",
        "xg2g_sessions_heartbeat_late_total 1",
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
}

#[tokio::test]
async fn stops_are_idempotent_and_free_the_key() {
    let server = start().await;
    let (_, answer) = intent(&server, live("channel", "auto")).await;
    let first = id(&answer);
    let stop = json!({"type": "stream.stop", "sessionId": first});
    for _ in 0..2 {
        let (status, stopped) = intent(&server, stop.clone()).await;
        assert_eq!((status, &stopped["state"]), (202, &json!("stopped")));
    }
    let (_, session) = get(&server, &first).await;
    assert_eq!(session["reason"], "R_CLIENT_STOP");
    let (status, over) = beat(&server, &first).await;
    assert_eq!((status, &over["code"]), (410, &json!("SESSION_EXPIRED")));
    assert_eq!(
        (&over["state"], &over["reason"]),
        (&json!("stopped"), &json!("R_CLIENT_STOP")),
        "{over}"
    );
    let unknown = json!({"type": "stream.stop", "session_id": NOBODY});
    assert_eq!(intent(&server, unknown).await.0, 404);
    // A retry starts afresh.
    let (_, again) = intent(&server, live("channel", "auto")).await;
    assert_eq!(again["status"], "accepted");
    assert_ne!(id(&again), first);
}

#[tokio::test]
async fn phase_1_answers_409_and_gives_everything_back() {
    let server = start_with(SessionOptions {
        api_leases: true,
        ..SessionOptions::default()
    })
    .await;
    let busy: lease::Key = "service:channel".parse().unwrap();
    let ttl = lease::Ttl::from_secs(30).unwrap();
    let worker = lease::Holder::new("worker", "1").unwrap();
    let request = lease::Acquire::one(busy.clone(), worker, ttl);
    server.authority.acquire(request).await.unwrap();
    let body = Some(live("channel", "auto"));
    let response = server
        .send(WRITE, Method::POST, "/api/v3/intents", body)
        .await;
    assert_eq!(response.status(), 409);
    assert_eq!(response.headers()["retry-after"], "30");
    let problem: Value = response.json().await.unwrap();
    assert_eq!(problem["code"], "LEASE_BUSY");
    let query = RecordQuery {
        kind: "session".into(),
        prefix: String::new(),
        after: None,
        limit: 10,
    };
    assert_eq!(server.authority.records(query).await.unwrap().items, []);

    let (status, answer) = intent(&server, live("other", "auto")).await;
    assert_eq!(status, 202, "{answer}");
    let (_, replay) = intent(&server, live("other", "auto")).await;
    assert_eq!(replay["status"], "idempotent_replay");
    // The worker finds the service free.
    let services = leases(&server, Some("service")).await;
    assert_eq!(services.len(), 1);
    assert_eq!(services[0].key, busy);
    let (_, metrics) = server.call("", "GET", "/metrics", Value::Null).await;
    let metrics = metrics.as_str().unwrap_or_default().to_owned();
    for line in [
        r#"v3_intents_total{type="stream.start",outcome="conflict",mode="phase1"} 1"#,
        r#"v3_intents_total{type="stream.start",outcome="replay",mode="phase1"} 1"#,
        r#"v3_idempotent_replay_total{type="stream.start"} 1"#,
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
}

#[tokio::test]
async fn phase_1_accepts_one_of_several_racers() {
    let options = SessionOptions {
        api_leases: true,
        ..SessionOptions::default()
    };
    let server = Arc::new(start_with(options).await);
    let mut calls = tokio::task::JoinSet::new();
    for profile in ["auto", "high", "low", "virtual"] {
        for start_ms in [0, 1_000, 2_000] {
            let server = server.clone();
            let mut body = live("channel", profile);
            body["startMs"] = json!(start_ms);
            calls.spawn(async move { intent(&server, body).await });
        }
    }
    let answers = calls.join_all().await;
    let accepted: Vec<_> = answers
        .iter()
        .filter(|(status, _)| *status == 202)
        .collect();
    assert_eq!(accepted.len(), 1, "{answers:?}");
    for (status, answer) in &answers {
        assert!(*status == 202 || answer["code"] == "LEASE_BUSY", "{answer}");
    }
    // Also after the race, until the session is over.
    let first = &accepted[0].1;
    let mut other = live("channel", "auto");
    other["startMs"] = json!(9_000);
    assert_eq!(intent(&server, other.clone()).await.0, 409);
    let stop = json!({"type": "stream.stop", "session_id": id(first)});
    assert_eq!(intent(&server, stop.clone()).await.0, 202);
    let services = RecordQuery {
        kind: "service".into(),
        prefix: String::new(),
        after: None,
        limit: 10,
    };
    let left = server.authority.records(services).await.unwrap();
    assert_eq!(left.items, [], "a reservation goes with its session");
    assert_eq!(intent(&server, other).await.0, 202);
}

#[tokio::test]
async fn tenants_neither_see_nor_share_sessions() {
    let server = start().await;
    let start = live("channel", "auto");
    let (_, ours) = server
        .call("a-v3", "POST", "/api/v3/intents", start.clone())
        .await;
    let (_, theirs) = server.call("b-v3", "POST", "/api/v3/intents", start).await;
    assert_ne!(id(&ours), id(&theirs));
    for path in ["", "/heartbeat", "/events", "/hls/index.m3u8"] {
        let method = if path == "/heartbeat" { "POST" } else { "GET" };
        let path = format!("/api/v3/sessions/{}{path}", id(&ours));
        let (status, _) = server.call("b-v3", method, &path, Value::Null).await;
        assert_eq!(status, 404, "{path}");
    }
    let stop = json!({"type": "stream.stop", "session_id": id(&ours)});
    let (status, _) = server.call("b-v3", "POST", "/api/v3/intents", stop).await;
    assert_eq!(status, 404);
    let (_, list) = server
        .call("b-v3", "GET", "/api/v3/sessions", Value::Null)
        .await;
    assert_eq!(list["sessions"].as_array().unwrap().len(), 1);
    assert_eq!(list["sessions"][0]["session_id"], theirs["session_id"]);
    // Tokens for leases do not open the route of sessions.
    for token in [TENANT_A, TENANT_B] {
        let (status, _) = server
            .call(token, "GET", "/api/v3/sessions", Value::Null)
            .await;
        assert_eq!(status, 403);
    }
}

#[tokio::test]
async fn lists_are_newest_first_and_page() {
    let server = start().await;
    let mut ids = Vec::new();
    for number in 0..5 {
        let (_, answer) = intent(&server, live(&format!("channel-{number}"), "auto")).await;
        ids.push(id(&answer));
        server.clock.advance(10);
    }
    ids.reverse();
    let mut seen = Vec::new();
    let mut path = "/api/v3/sessions?limit=2&state=new".to_owned();
    loop {
        let (status, page) = server.call(ADMIN, "GET", &path, Value::Null).await;
        assert_eq!(status, 200, "{page}");
        seen.extend(page["sessions"].as_array().unwrap().iter().map(id));
        let Some(cursor) = page["next_cursor"].as_str() else {
            break;
        };
        path = format!("/api/v3/sessions?limit=2&state=new&cursor={cursor}");
    }
    assert_eq!(seen, ids);
    let failed = "/api/v3/sessions?state=failed";
    let (_, none) = server.call(ADMIN, "GET", failed, Value::Null).await;
    assert_eq!(none["sessions"], json!([]));
    let odd = "/api/v3/sessions?state=odd";
    assert_eq!(server.call(ADMIN, "GET", odd, Value::Null).await.0, 400);
    let all = "/api/v3/sessions";
    assert_eq!(server.call(WRITE, "GET", all, Value::Null).await.0, 403);
}

#[tokio::test]
async fn playlists_are_served_and_count_as_heartbeats() {
    let output = tempfile::tempdir().unwrap();
    let server = start_with(SessionOptions {
        output_dir: Some(output.path().into()),
        ..SessionOptions::default()
    })
    .await;
    let (_, answer) = intent(&server, live("channel", "auto")).await;
    let id = id(&answer);
    let folder = output.path().join(&id);
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("index.m3u8"), "#EXTM3U\nseg.ts\n").unwrap();
    std::fs::write(folder.join("seg.ts"), "segment").unwrap();
    std::fs::write(output.path().join("secret.ts"), "secret").unwrap();
    server.clock.advance(20_000);
    let fetch = async |token: &str, file: &str| {
        let path = format!("/api/v3/sessions/{id}/hls/{file}");
        server.send(token, Method::GET, &path, None).await
    };
    let playlist = fetch(READ, "index.m3u8").await;
    assert_eq!(playlist.status(), 200);
    assert_eq!(
        playlist.headers()["content-type"],
        "application/vnd.apple.mpegurl"
    );
    let (_, session) = get(&server, &id).await;
    assert_eq!(session["lease_expires_at"], "2027-01-15T08:01:20.000Z");
    assert_eq!(fetch(READ, "seg.ts").await.text().await.unwrap(), "segment");
    for escape in ["..%2Fsecret.ts", ".hidden.ts", "none.ts", "index.html"] {
        assert_eq!(fetch(READ, escape).await.status(), 404, "{escape}");
    }
    assert_eq!(fetch("", "seg.ts").await.status(), 401);
    server.clock.advance(60_000);
    assert_eq!(fetch(READ, "index.m3u8").await.status(), 410);
}

#[tokio::test]
async fn a_session_stream_tells_every_state_and_ends_with_the_last() {
    let server = start().await;
    let (_, answer) = intent(&server, live("channel", "auto")).await;
    let id = id(&answer);
    let path = format!("/api/v3/sessions/{id}/events");
    let response = server.send(READ, Method::GET, &path, None).await;
    assert_eq!(response.status(), 200);
    let reading = tokio::spawn(response.text());
    intent(&server, json!({"type": "stream.stop", "session_id": id})).await;
    let text = tokio::time::timeout(support::LONG, reading)
        .await
        .expect("the stream ends with the session")
        .unwrap()
        .unwrap();
    let states: Vec<Value> = text
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(|data| serde_json::from_str::<Value>(data).unwrap()["state"].clone())
        .collect();
    assert_eq!(states.first(), Some(&json!("new")), "{text}");
    assert_eq!(states.last(), Some(&json!("stopped")), "{text}");
}

#[test]
fn timing_under_which_sessions_would_expire_by_themselves_is_refused() {
    for (ttl, interval) in [
        (0, 5_000),
        (60_000, 0),
        (60_000, 20_001),
        (86_400_001, 1_000),
    ] {
        let options = SessionOptions {
            lease_ttl_ms: ttl,
            heartbeat_interval_ms: interval,
            ..SessionOptions::default()
        };
        assert!(options.validate().is_err(), "{ttl} {interval}");
    }
}
