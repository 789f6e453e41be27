//! Heartbeats that race the expiry: what is answered with 200 lives until the moment that was named, and
//! what is answered with 410 stays over.

use std::time::Duration;

use leasehold_testkit::wait;
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::cli_support::{SOON, boot_ms};
use crate::sessions::api::{Api, Backend};

const TTL_MS: u64 = 1_000;
/// How many sessions are being started at a time: all at once, none would be known in time for its first
/// heartbeat on a slow machine.
const STARTING: usize = 16;

/// Milliseconds since 1970 of a time as the API writes it.
fn millis(time: &Value) -> u64 {
    let text = time.as_str().unwrap();
    let part = |from: usize, to: usize| text[from..to].parse::<u64>().unwrap();
    // Within one run only differences matter: days are counted as if months had 31.
    let days = (part(0, 4) * 12 + part(5, 7)) * 31 + part(8, 10);
    ((days * 24 + part(11, 13)) * 60 + part(14, 16)) * 60_000 + part(17, 19) * 1000 + part(20, 23)
}

/// One session whose heartbeats come ever closer to its end, from several clients at once, until it is
/// over. Returns how often it was kept alive.
async fn one(api: &Api, starting: &Semaphore, number: usize) -> usize {
    let turn = starting.acquire().await.unwrap();
    let id = api
        .start_session(&format!("race-{number}"), "virtual")
        .await;
    let mut expires_at = millis(&api.session(&id).await["lease_expires_at"]);
    let mut asked = boot_ms();
    drop(turn);
    // Spread over the last moments before and the first after the expiry.
    let mut lead_ms = 120 + (number as u64 * 37) % 200;
    let mut kept = 0;
    loop {
        let until = asked + TTL_MS;
        let at = until.saturating_sub(lead_ms);
        tokio::time::sleep(Duration::from_millis(at.saturating_sub(boot_ms()))).await;
        let sent = boot_ms();
        let answers = futures_util::future::join_all((0..3).map(|_| api.beat(&id))).await;
        let mut over = false;
        // Among themselves they may be answered in any order.
        let before = expires_at;
        for (status, answer) in answers {
            match status {
                200 => {
                    let shown = millis(&answer["lease_expires_at"]);
                    assert!(shown >= before, "moved backwards: {answer}");
                    expires_at = expires_at.max(shown);
                }
                410 => over = true,
                _ => panic!("{status} {answer}"),
            }
        }
        if over {
            // Over is over: nothing brings it back, whoever asks and however often.
            for _ in 0..5 {
                assert_eq!(api.beat(&id).await.0, 410, "revived");
            }
            break;
        }
        kept += 1;
        asked = sent;
        lead_ms = lead_ms.saturating_sub(60);
        if kept > 6 {
            // Late on purpose.
            asked += 60;
        }
    }
    wait::until(SOON, "the session is stopped", async || {
        api.session(&id).await["state"] == "stopped"
    })
    .await;
    let session = api.session(&id).await;
    assert_eq!(session["reason"], "R_LEASE_EXPIRED", "{session}");
    // By the server's own clock, however slow this test is: the last promise is the one that counts, and
    // it was kept.
    assert_eq!(
        millis(&session["lease_expires_at"]),
        expires_at,
        "{session}"
    );
    assert!(
        millis(&session["updated_at"]) >= expires_at,
        "ended early: {session}"
    );
    assert_eq!(api.beat(&id).await.0, 410);
    kept
}

async fn heartbeats_race_expiry(backend: Backend, sessions: usize) {
    let settings = [
        ("LEASEHOLD_SESSIONS_LEASE_TTL", "1s"),
        ("LEASEHOLD_SESSIONS_HEARTBEAT_INTERVAL", "1ms"),
        ("LEASEHOLD_SESSIONS_WORKER", "false"),
    ];
    let api = Api::start(backend.url().as_deref(), &settings).await;
    let starting = Semaphore::new(STARTING);
    let races = (0..sessions).map(|number| one(&api, &starting, number));
    let kept: usize = futures_util::future::join_all(races)
        .await
        .into_iter()
        .sum();
    assert!(
        kept > sessions / 10,
        "hardly any heartbeat came in time: {kept}"
    );
    assert!(api.leases("session").await.is_empty());
}

#[tokio::test]
async fn alone_heartbeats_never_revive_on_the_embedded_store() {
    heartbeats_race_expiry(Backend::Embedded, 150).await;
}

#[tokio::test]
async fn alone_heartbeats_never_revive_on_postgres() {
    heartbeats_race_expiry(Backend::postgres().await, 60).await;
}

#[tokio::test]
async fn alone_heartbeats_never_revive_on_redis() {
    heartbeats_race_expiry(Backend::redis().await, 60).await;
}
