//! The control plane goes away and comes back.

use std::os::unix::fs::PermissionsExt as _;

use leasehold_testkit::wait;
use nix::sys::signal::Signal;
use serde_json::json;

use super::stage::{Manager, Stage, contradictions, longest_gap};
use crate::cli_support::{SOON, boot_ms};

#[tokio::test]
async fn an_outage_within_the_grace_interrupts_nothing() {
    let mut stage = Stage::start(4).await;
    let changes =
        json!({"lease_ttl_seconds": 4, "on_outage": "continue", "outage_grace_seconds": 30});
    let manager = stage.manager("m1", changes).await;
    stage.working(4, 0).await;
    manager.ready().await;
    let pids = manager.worker_pids().await;
    stage.server.child.kill9();
    let away = boot_ms();
    wait::until(SOON, "it notices", async || {
        manager.get("/healthz").await["status"] == "degraded"
    })
    .await;
    wait::until(SOON, "every lease is in its grace", async || {
        standing(&manager, 4, "grace").await
    })
    .await;
    stage.server.restart().await;
    let back = boot_ms();
    wait::until(SOON, "it is itself again", async || {
        manager.get("/healthz").await["status"] == "ok" && standing(&manager, 4, "owned").await
    })
    .await;
    stage.working(4, boot_ms()).await;
    assert_eq!(manager.worker_pids().await, pids, "no worker was touched");
    let gap = longest_gap(&stage.since(away));
    println!("away for {} ms, longest gap {gap} ms", back - away);
    assert!(gap < 4_000, "{gap} ms");
    for (camera, lines) in stage.since(0) {
        let first = lines[0].token();
        let same = lines.iter().all(|it| it.token() == first);
        assert!(same, "{camera}: one token throughout");
    }
    assert_eq!(contradictions(&stage.lines()), Vec::<String>::new());
}

/// Unlike a killed one, it keeps connections open and answers nothing.
#[tokio::test]
async fn a_paused_control_plane_interrupts_nothing_within_the_grace() {
    let stage = Stage::start(4).await;
    let changes =
        json!({"lease_ttl_seconds": 4, "on_outage": "continue", "outage_grace_seconds": 30});
    let manager = stage.manager("m1", changes).await;
    stage.working(4, 0).await;
    manager.ready().await;
    let pids = manager.worker_pids().await;
    let paused = boot_ms();
    stage.server.child.sigstop();
    wait::until(SOON, "every lease is in its grace", async || {
        standing(&manager, 4, "grace").await
    })
    .await;
    stage.server.child.sigcont();
    wait::until(SOON, "it is itself again", async || {
        manager.get("/healthz").await["status"] == "ok" && standing(&manager, 4, "owned").await
    })
    .await;
    stage.working(4, boot_ms()).await;
    assert_eq!(manager.worker_pids().await, pids, "no worker was touched");
    assert!(longest_gap(&stage.since(paused)) < 4_000);
    assert_eq!(contradictions(&stage.lines()), Vec::<String>::new());
}

/// Whether a manager has so many leases, all of them in this state.
pub async fn standing(manager: &Manager, count: usize, word: &str) -> bool {
    let leases = manager.get("/leases").await;
    let leases = leases["leases"].as_array().cloned().unwrap_or_default();
    leases.len() == count && leases.iter().all(|it| it["standing"] == word)
}

#[tokio::test]
async fn past_the_grace_everything_stops_and_fail_closed_has_none() {
    let mut stage = Stage::start(2).await;
    let short = json!({"lease_ttl_seconds": 2, "on_outage": "continue", "outage_grace_seconds": 2});
    let one = stage.manager("m1", short).await;
    stage.working(2, 0).await;
    stage.server.child.kill9();
    let away = boot_ms();
    wait::until(SOON, "nothing is held", async || {
        one.get("/healthz").await["cameras"] == 0 && one.worker_pids().await.is_empty()
    })
    .await;
    let last = stage.lines().last().expect("something was published").at();
    let went_on = last.saturating_sub(away);
    println!("went on for {went_on} ms");
    assert!(
        (1_500..4_100).contains(&went_on),
        "deadline and grace: {went_on} ms"
    );
    stage.server.restart().await;
    stage.working(2, boot_ms()).await;
    assert_eq!(contradictions(&stage.lines()), Vec::<String>::new());
}

#[tokio::test]
async fn a_peer_that_reaches_the_control_plane_stops_the_one_that_is_cut_off() {
    let stage = Stage::start(2).await;
    let proxy = leasehold_testkit::Proxy::start(stage.server.address).await;
    let changes = json!({"lease_ttl_seconds": 2, "on_outage": "continue", "outage_grace_seconds": 60,
        "control_plane_url": format!("http://{}", proxy.addr())});
    let one = stage.manager("m1", changes).await;
    stage.working(2, 0).await;
    let two = stage
        .manager(
            "m2",
            json!({"lease_ttl_seconds": 2, "max_workers": 1, "max_cameras_per_worker": 2}),
        )
        .await;
    wait::until(SOON, "the second one is registered", async || {
        two.get("/healthz").await["registered"] == true
    })
    .await;
    assert_eq!(two.get("/reachable").await["reachable"], true);
    // The first one learns of the second with its next look at the configuration.
    stage.add_camera(7).await;
    wait::until(SOON, "it is processed", async || {
        stage.since(0).contains_key("cam-007")
    })
    .await;
    proxy.blackhole();
    let cut = boot_ms();
    wait::until(SOON, "the one that is cut off stops", async || {
        one.get("/healthz").await["cameras"] == 0
    })
    .await;
    let took_ms = boot_ms() - cut;
    assert!(took_ms < 30_000, "far less than the grace: {took_ms} ms");
    stage.holds("m2", 2).await;
    assert_eq!(contradictions(&stage.lines()), Vec::<String>::new());
}

#[tokio::test]
async fn a_manager_that_starts_alone_waits_and_asks_the_next_address() {
    let mut stage = Stage::start(1).await;
    let nobody = format!("http://127.0.0.1:{}", leasehold_testkit::port::free());
    let both = json!([nobody, stage.url()]);
    stage.server.child.signal(Signal::SIGTERM);
    stage.server.child.wait(SOON).await;
    let manager = stage
        .manager("m1", json!({"control_plane_url": both}))
        .await;
    wait::until(SOON, "it waits", async || {
        manager.get("/healthz").await["status"] == "degraded"
    })
    .await;
    stage.server.restart().await;
    stage.working(1, 0).await;
}

/// The configuration is kept for the time without a control plane: for its owner only, its age is shown, and one
/// that is too old is not started from.
#[tokio::test]
async fn the_kept_configuration_is_private_and_used_only_while_it_is_fresh() {
    let mut stage = Stage::start(1).await;
    let mut manager = stage.manager("m1", json!({})).await;
    stage.working(1, 0).await;
    let age = manager.get("/healthz").await["cache_age_seconds"].as_f64();
    assert!(age.is_some(), "its age is shown");
    let file = manager.state_dir.join("cache.json");
    let mode = std::fs::metadata(&file)
        .expect("it is kept")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    manager.child.signal(Signal::SIGTERM);
    manager.child.wait(SOON).await;
    stage.server.child.signal(Signal::SIGTERM);
    stage.server.child.wait(SOON).await;

    let mut manager = stage.manager("m1", json!({})).await;
    let age = manager.get("/healthz").await["cache_age_seconds"].clone();
    assert!(age.is_f64(), "started from it: {age}");
    manager.child.signal(Signal::SIGTERM);
    manager.child.wait(SOON).await;

    let old = json!({"cache_max_age_seconds": 0});
    let manager = stage.manager("m1", old).await;
    let age = manager.get("/healthz").await["cache_age_seconds"].clone();
    assert!(age.is_null(), "too old to be started from: {age}");
}
