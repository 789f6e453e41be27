//! Sessions from their start to their end, and workers that are killed.

use std::{collections::BTreeSet, time::Duration};

use leasehold_testkit::{Postgres, Redis, wait};
use serde_json::json;

use crate::cli_support::SOON;
use crate::sessions::api::{Api, runs, with_children};

/// The leases of a worker last this long at most: the contract's ttl, and a little.
const TTL: Duration = Duration::from_secs(35);

/// A whole life on one backend: parallel starts are one session, ffmpeg makes it playable, a second profile
/// is told that the channel is busy, and nothing is left behind.
async fn a_life(api: &Api) {
    let starts = (0..20).map(|_| api.start_session("1:0:19:132F", "low"));
    let ids: BTreeSet<String> = futures_util::future::join_all(starts)
        .await
        .into_iter()
        .collect();
    assert_eq!(ids.len(), 1, "{ids:?}");
    let id = ids.into_iter().next().unwrap();
    let running = api.reaches(&id, "running", SOON).await;
    assert_eq!(running["tuner_slot"], "0");
    assert_eq!(api.leases("tuner").await, ["0"]);
    let playlist = running["playback_url"].as_str().unwrap().to_owned();
    let (status, text) = api.call("GET", &playlist, None).await;
    assert_eq!(status, 200);
    let segment = text
        .as_str()
        .unwrap()
        .lines()
        .find(|line| line.starts_with("seg"))
        .unwrap()
        .to_owned();
    let (status, _) = api
        .call("GET", &playlist.replace("index.m3u8", &segment), None)
        .await;
    assert_eq!(status, 200);

    let other = api.start_session("1:0:19:132F", "virtual").await;
    let refused = api.reaches(&other, "ended", SOON).await;
    assert_eq!(refused["reason"], "R_LEASE_BUSY");
    assert_eq!(refused["outcome"], "REJECTED_BUSY");

    api.stop(&id).await;
    let stopped = api.reaches(&id, "stopped", SOON).await;
    assert_eq!(stopped["reason"], "R_CLIENT_STOP");
    for kind in ["service", "tuner", "session"] {
        assert_eq!(api.leases(kind).await, Vec::<String>::new(), "{kind}");
    }
    wait::until(SOON, "the output is gone", async || {
        std::fs::read_dir(api.output()).is_ok_and(|mut folders| folders.next().is_none())
    })
    .await;
    wait::until(SOON, "ffmpeg is gone", async || !runs("ffmpeg", &id)).await;
}

#[tokio::test]
async fn a_session_lives_on_the_embedded_store() {
    let api = Api::start(None, &[]).await;
    a_life(&api).await;
}

#[tokio::test]
async fn a_session_lives_on_postgres() {
    let database = Postgres::shared().await;
    let api = Api::start(Some(&database.url()), &[]).await;
    a_life(&api).await;
}

#[tokio::test]
async fn a_session_lives_on_redis() {
    let redis = Redis::start().await;
    let api = Api::start(Some(&redis.url()), &[]).await;
    a_life(&api).await;
}

#[tokio::test]
async fn more_channels_than_slots_are_refused() {
    let api = Api::start(None, &[("XG2G_V3_TUNER_SLOTS", "only")]).await;
    let first = api.start_session("one", "virtual").await;
    api.reaches(&first, "running", SOON).await;
    let second = api.start_session("two", "virtual").await;
    let refused = api.reaches(&second, "ended", SOON).await;
    assert_eq!(refused["reason"], "R_NO_TUNER");
    assert_eq!(api.leases("service").await, ["one"]);
}

#[tokio::test]
async fn a_session_without_heartbeats_expires_and_says_so() {
    let mut api = Api::start(
        None,
        &[
            ("LEASEHOLD_SESSIONS_LEASE_TTL", "3s"),
            ("LEASEHOLD_SESSIONS_HEARTBEAT_INTERVAL", "1s"),
        ],
    )
    .await;
    let silent = api.start_session("one", "low").await;
    let alive = api.start_session("two", "virtual").await;
    api.reaches(&silent, "running", SOON).await;
    let beating = format!("/api/v3/sessions/{alive}/heartbeat");
    wait::until(SOON, "the silent one is stopped", async || {
        assert_eq!(api.call("POST", &beating, None).await.0, 200);
        api.session(&silent).await["state"] == "stopped"
    })
    .await;
    let stopped = api.session(&silent).await;
    assert_eq!(stopped["reason"], "R_LEASE_EXPIRED");
    assert_eq!(stopped["stop_reason"], "LEASE_EXPIRED");
    api.child.wait_for_line("session.lease_expired", SOON).await;
    let (status, _) = api
        .call(
            "POST",
            &format!("/api/v3/sessions/{silent}/heartbeat"),
            None,
        )
        .await;
    assert_eq!(status, 410);
    assert_eq!(api.leases("tuner").await.len(), 1);
    let (_, metrics) = api.call("GET", "/metrics", None).await;
    let metrics = metrics.as_str().unwrap();
    assert!(
        metrics.contains(r#"xg2g_sessions_lease_expired_total{previous_state="running"} 1"#),
        "{metrics}"
    );
}

/// (A) The worker is killed and stays away: its leases last until it counts as dead, and then another one works.
#[tokio::test]
async fn heavy_a_killed_worker_frees_its_channel_after_the_linger() {
    let settings = [
        ("LEASEHOLD_SESSIONS_WORKER", "false"),
        ("LEASEHOLD_LIMITS_DEATH_LINGER", "8s"),
    ];
    let api = Api::start(None, &settings).await;
    let mut first = api.worker("one").await;
    let id = api.start_session("channel", "low").await;
    api.reaches(&id, "running", SOON).await;
    let _second = api.worker("two").await;
    first.kill9_alone();
    wait::until(SOON, "ffmpeg died with its worker", async || {
        !runs("ffmpeg", &id)
    })
    .await;
    let busy = api.start_session("channel", "virtual").await;
    assert_eq!(
        api.reaches(&busy, "ended", SOON).await["reason"],
        "R_LEASE_BUSY"
    );
    // Two thirds of its ttl are left at least: it is not the expiry that ends it.
    let failed = api.reaches(&id, "failed", Duration::from_secs(18)).await;
    assert_eq!(failed["reason"], "R_WORKER_LOST");
    let again = api.start_session("channel", "virtual").await;
    api.reaches(&again, "running", SOON).await;
}

/// (B) The worker is killed and restarts at once under its name: the channel is free immediately, and
/// another worker's leases stay untouched.
#[tokio::test]
async fn a_worker_that_restarts_at_once_frees_what_it_held() {
    let api = Api::start(None, &[("LEASEHOLD_SESSIONS_WORKER", "false")]).await;
    let mut first = api.worker("one").await;
    let id = api.start_session("channel", "low").await;
    api.reaches(&id, "running", SOON).await;
    let _other = api.worker("two").await;
    first.kill9_alone();
    let _restarted = api.worker("one").await;
    let failed = api.session(&id).await;
    assert_eq!(
        (&failed["state"], &failed["reason"]),
        (&json!("failed"), &json!("R_WORKER_LOST"))
    );
    let again = api.start_session("channel", "virtual").await;
    // Before the ttl.
    api.reaches(&again, "running", Duration::from_secs(20))
        .await;
}

/// Killed and started again, it frees the tuner at once: nothing of the old stream may be left on it, also
/// when its program ignores SIGTERM.
#[tokio::test]
async fn after_a_kill_and_a_restart_one_pipeline_has_the_tuner() {
    let settings = [("LEASEHOLD_SESSIONS_WORKER", "false")];
    let api = Api::start_with(None, &settings, Some(&with_children())).await;
    let mut worker = api.worker("one").await;
    let mut id = api.start_session("channel", "stubborn").await;
    api.reaches(&id, "running", SOON).await;
    for round in 0..3 {
        worker.kill9_alone();
        worker = api.worker("one").await;
        assert_eq!(api.session(&id).await["reason"], "R_WORKER_LOST");
        id = api.start_session("channel", "stubborn").await;
        wait::until(SOON, "the next stream runs", async || {
            let streams = api.streams();
            assert!(
                streams.values().all(|&count| count <= 1),
                "round {round}, twice: {streams:?}"
            );
            api.session(&id).await["state"] == "running"
        })
        .await;
        assert_eq!(api.streams().values().sum::<usize>(), 1, "round {round}");
    }
}

/// A crash between persist and wake-up: the session was accepted while nobody listened.
#[tokio::test]
async fn a_session_accepted_without_a_worker_is_found_later() {
    let api = Api::start(None, &[("LEASEHOLD_SESSIONS_WORKER", "false")]).await;
    let id = api.start_session("channel", "virtual").await;
    assert_eq!(api.session(&id).await["state"], "new");
    let _worker = api.worker("late").await;
    api.reaches(&id, "running", SOON).await;
}

/// A worker whose process was stopped for longer than its presence lasts (a suspended machine) announces
/// itself again and takes sessions as before.
#[tokio::test]
async fn heavy_a_worker_that_was_suspended_takes_sessions_again() {
    let api = Api::start(None, &[("LEASEHOLD_SESSIONS_WORKER", "false")]).await;
    let worker = api.worker("one").await;
    let before = api.start_session("before", "virtual").await;
    api.reaches(&before, "running", SOON).await;
    worker.sigstop();
    let failed = api.reaches(&before, "failed", TTL + SOON).await;
    assert_eq!(failed["reason"], "R_WORKER_LOST");
    // Accepted while the worker is away: nobody claims it, and it is not lost.
    let meanwhile = api.start_session("meanwhile", "virtual").await;
    worker.sigcont();
    api.reaches(&meanwhile, "running", SOON).await;
    for round in 0..3 {
        let id = api
            .start_session(&format!("after-{round}"), "virtual")
            .await;
        api.reaches(&id, "running", SOON).await;
        let stop = json!({"type": "stream.stop", "session_id": id});
        let (status, answer) = api.call("POST", "/api/v3/intents", Some(stop)).await;
        assert_eq!(status, 202, "{answer}");
        api.reaches(&id, "stopped", SOON).await;
    }
}

/// Two workers of one name on one machine: the second is refused and the first goes on; without a name
/// each gets its own.
#[tokio::test]
async fn a_second_worker_of_a_name_does_not_disturb_the_first() {
    let api = Api::start(None, &[("LEASEHOLD_SESSIONS_WORKER", "false")]).await;
    let _first = api.worker("one").await;
    let id = api.start_session("channel", "virtual").await;
    api.reaches(&id, "running", SOON).await;
    let mut second = api.worker_program(Some("one")).spawn();
    let status = second.wait(SOON).await;
    assert!(!status.success());
    assert!(second.tail().contains("is in use"), "{}", second.tail());
    assert_eq!(api.session(&id).await["state"], "running");
    let mut unnamed = [
        api.worker_program(None).spawn(),
        api.worker_program(None).spawn(),
    ];
    let mut names = Vec::new();
    for child in &mut unnamed {
        names.push(child.wait_for_line("takes sessions", SOON).await);
    }
    assert_ne!(names[0], names[1]);
    assert_eq!(api.session(&id).await["state"], "running");
}
