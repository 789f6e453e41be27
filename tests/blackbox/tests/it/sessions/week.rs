//! A week of sessions in short: every way a session can end, again and again, and in the end nothing is
//! left: no record, no lease, no folder, no child.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use leasehold_testkit::{length, wait};
use serde_json::{Value, json};

use crate::cli_support::SOON;
use crate::sessions::api::{Api, Backend, with_children};

/// How many clients there are at a time.
const CLIENTS: usize = 12;
/// How often the worker is killed on the way.
const KILLS: usize = 3;
/// Long enough for leases that nobody could give back.
const TTL: Duration = Duration::from_secs(45);

/// What one client does with its session.
async fn session(api: &Api, number: usize) {
    let channel = format!("channel-{}", number % 97);
    // Twelve clients and four tuners: many are refused without being asked to.
    let (profile, service) = match number % 8 {
        0 => ("broken", channel),
        1 => ("child", channel),
        // Always the same channel in two ways: one of them finds it busy.
        2 => ("virtual", "busy".to_owned()),
        3 => ("child", "busy".to_owned()),
        _ => ("virtual", channel),
    };
    let body = json!({"service_ref": service, "profile": profile});
    let (status, answer) = api.call("POST", "/api/v3/intents", Some(body)).await;
    assert_eq!(status, 202, "{answer}");
    let id = answer["session_id"].as_str().unwrap();
    match number % 5 {
        // Gone without a word: it expires.
        0 => {}
        // Changed its mind at once.
        1 => api.stop(id).await,
        _ => {
            let decided = wait::until_some(TTL, "the session is decided", async || {
                let (status, session) = api
                    .call("GET", &format!("/api/v3/sessions/{id}"), None)
                    .await;
                // Over, and forgotten already.
                let gone = status == 404;
                let state = session["state"].as_str().unwrap_or_default();
                (gone || !matches!(state, "new" | "starting")).then(|| state.to_owned())
            })
            .await;
            if decided == "running" {
                api.beat(id).await;
                let body = json!({"type": "stream.stop", "session_id": id});
                let (status, answer) = api.call("POST", "/api/v3/intents", Some(body)).await;
                assert!(matches!(status, 202 | 404), "{status} {answer}");
            }
        }
    }
}

async fn a_week(backend: Backend, sessions: usize) {
    let settings = [
        ("LEASEHOLD_SESSIONS_LEASE_TTL", "2s"),
        ("LEASEHOLD_SESSIONS_HEARTBEAT_INTERVAL", "500ms"),
        ("LEASEHOLD_SESSIONS_EXPIRY_CHECK_INTERVAL", "1s"),
        ("LEASEHOLD_SESSIONS_REMEMBER", "2s"),
        ("LEASEHOLD_SESSIONS_WORKER", "false"),
    ];
    let file = with_children();
    let api = Api::start_with(backend.url().as_deref(), &settings, Some(&file)).await;
    let mut worker = api.worker("worker-1").await;
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let clients = (0..CLIENTS).map(|_| async {
        loop {
            let number = next.fetch_add(1, Ordering::SeqCst);
            if number >= sessions {
                return;
            }
            session(&api, number).await;
            done.fetch_add(1, Ordering::SeqCst);
        }
    });
    let killing = async {
        for kill in 1..=KILLS {
            wait::until(Duration::from_secs(240), "a part of the week", async || {
                done.load(Ordering::SeqCst) >= sessions * kill / (KILLS + 1)
            })
            .await;
            worker.kill9_alone();
            worker = api.worker("worker-1").await;
        }
    };
    tokio::join!(futures_util::future::join_all(clients), killing);

    api.is_clean(TTL).await;
    for kind in ["session", "intent"] {
        wait::until(SOON, &format!("no {kind} is remembered"), async || {
            api.records(kind).await == 0
        })
        .await;
    }
    // All that is held is the presence of the worker and of the server.
    let (_, list) = api.call("GET", "/api/v1/leases/?status=active", None).await;
    let left: Vec<&Value> = list["leases"].as_array().unwrap().iter().collect();
    let kinds: Vec<&str> = left.iter().map(|l| l["kind"].as_str().unwrap()).collect();
    assert!(
        kinds
            .iter()
            .all(|kind| matches!(*kind, "worker" | "leadership" | "replica")),
        "{left:?}"
    );
    look_inside(&backend, &api.url).await;
    let (_, metrics) = api.call("GET", "/metrics", None).await;
    let accepted = metrics.as_str().unwrap().lines().find(|line| {
        line.starts_with(r#"v3_intents_total{type="stream.start",outcome="accepted""#)
    });
    assert!(accepted.is_some(), "{metrics}");
    worker.sigterm();
    worker.wait(SOON).await;
}

/// What the store itself says: no row and no key is about a session, but for the history and for the
/// last tokens, which both have their limits.
async fn look_inside(backend: &Backend, server: &str) {
    // The administrator's credential and the server itself are no session's.
    match backend {
        Backend::Embedded => {}
        Backend::Postgres(database) => {
            let sessions = "records WHERE key NOT LIKE 'credential:%' AND key NOT LIKE 'replica:%'";
            for rows in [sessions, "lease_waiters", "lease_waiter_keys"] {
                let count = database.psql(&format!("SELECT count(*) FROM {rows}")).await;
                assert_eq!(count.trim(), "0", "{rows}");
            }
        }
        Backend::Redis(redis) => {
            let keys = redis.cli(&["KEYS", "*"]).await;
            let (_, port) = server.rsplit_once(':').expect("a port");
            let replica = format!(":{port}");
            let left: Vec<&str> = keys
                .lines()
                .filter(|key| {
                    key.starts_with("leasehold:record")
                        || key.starts_with("leasehold:queue:")
                        || key.starts_with("lease:s")
                        || key.starts_with("lease:tuner")
                        || key.starts_with("leasehold:holder:")
                })
                .filter(|key| *key != "leasehold:record-kinds")
                .filter(|key| !key.contains(":credential") && !key.contains(":replica"))
                .filter(|key| !key.starts_with("leasehold:holder:worker"))
                .filter(|key| !(key.starts_with("leasehold:holder:") && key.ends_with(&replica)))
                .collect();
            assert!(left.is_empty(), "{left:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn heavy_a_week_of_sessions_leaves_nothing_in_the_embedded_store() {
    a_week(Backend::Embedded, length::pick(250, 5_000)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn heavy_a_week_of_sessions_leaves_nothing_in_postgres() {
    a_week(Backend::postgres().await, length::pick(150, 1_500)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn heavy_a_week_of_sessions_leaves_nothing_in_redis() {
    a_week(Backend::redis().await, length::pick(150, 1_500)).await;
}
