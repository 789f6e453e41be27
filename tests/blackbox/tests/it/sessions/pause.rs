//! A client that is paused loses its session, and somebody else gets its tuner in time.

use std::time::Duration;

use leasehold_testkit::wait;
use serde_json::json;

use crate::cli_support::{SOON, boot_ms};
use crate::sessions::api::{Api, Backend, runs};

const TTL_MS: u64 = 3_000;

async fn a_paused_client_frees_its_tuner(backend: Backend) {
    let settings = [
        ("LEASEHOLD_SESSIONS_LEASE_TTL", "3s"),
        ("LEASEHOLD_SESSIONS_HEARTBEAT_INTERVAL", "500ms"),
        ("LEASEHOLD_SESSIONS_TUNER_SLOTS", "only"),
    ];
    let mut api = Api::start(backend.url().as_deref(), &settings).await;
    let session = api.start_session("one", "low").await;
    let mut client = api.client(&session, 250);
    client.wait_for_line("heartbeat 200", SOON).await;
    api.reaches(&session, "running", SOON).await;
    // It is kept beyond its ttl while its client runs.
    let kept = boot_ms() + TTL_MS + 1_000;
    wait::until(SOON, "two heartbeats' worth of ttl", async || {
        assert_eq!(api.session(&session).await["state"], "running");
        boot_ms() > kept
    })
    .await;

    client.sigstop();
    let paused = boot_ms();
    // Somebody else wants the only tuner, and asks until it gets it.
    let next = loop {
        let id = api.start_session("two", "virtual").await;
        let outcome = wait::until_some(SOON, "the next session is decided", async || {
            let session = api.session(&id).await;
            matches!(session["state"].as_str(), Some("running" | "ended")).then_some(session)
        })
        .await;
        if outcome["state"] == "running" {
            break outcome;
        }
        assert_eq!(outcome["reason"], "R_NO_TUNER", "{outcome}");
        let waited = boot_ms() - paused;
        assert!(
            waited < TTL_MS + 5_000,
            "the tuner is not free after {waited} ms"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let waited = boot_ms() - paused;
    assert!(waited <= TTL_MS + 1_000, "reused only after {waited} ms");
    assert_eq!(next["tuner_slot"], "only");

    let over = api.session(&session).await;
    assert_eq!(
        (&over["state"], &over["reason"], &over["stop_reason"]),
        (
            &json!("stopped"),
            &json!("R_LEASE_EXPIRED"),
            &json!("LEASE_EXPIRED")
        )
    );
    assert!(!runs("ffmpeg", &session), "its stream still runs");
    // Awake again, it is told.
    client.sigcont();
    client.wait_for_line("heartbeat 410", SOON).await;
    api.child.wait_for_line("session.lease_expired", SOON).await;
}

#[tokio::test]
async fn alone_a_paused_client_frees_its_tuner_on_the_embedded_store() {
    a_paused_client_frees_its_tuner(Backend::Embedded).await;
}

#[tokio::test]
async fn alone_a_paused_client_frees_its_tuner_on_postgres() {
    a_paused_client_frees_its_tuner(Backend::postgres().await).await;
}

#[tokio::test]
async fn alone_a_paused_client_frees_its_tuner_on_redis() {
    a_paused_client_frees_its_tuner(Backend::redis().await).await;
}
