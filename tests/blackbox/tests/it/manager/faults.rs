//! Workers and managers that are killed, paused, or crash again and again.

use std::collections::BTreeSet;

use leasehold_testkit::wait;
use nix::sys::signal::Signal;
use serde_json::json;

use super::stage::{Line, Stage, contradictions, is_alive, kill9, signal};
use crate::cli_support::{SOON, boot_ms};

#[tokio::test]
async fn a_killed_worker_is_started_again_under_the_same_leases() {
    let stage = Stage::start(4).await;
    let grandchildren =
        json!({"max_workers": 1, "worker": {"environment": {"MISBEHAVE": "grandchild"}}});
    let manager = stage.manager("m1", grandchildren).await;
    stage.working(4, 0).await;
    let tokens: BTreeSet<u64> = stage.lines().iter().map(Line::token).collect();
    let pid = manager.workers(1).await[0];
    let tree = descendants(pid);
    assert!(!tree.is_empty(), "the worker has a child of its own");
    let killed = boot_ms();
    kill9(pid);
    wait::until(SOON, "another process has them all", async || {
        let since = stage.since(killed);
        since.len() == 4
            && since
                .values()
                .all(|lines| lines.iter().any(|it| it.pid() != pid))
    })
    .await;
    println!("processed again after {} ms", boot_ms() - killed);
    let after: BTreeSet<u64> = stage.lines().iter().map(Line::token).collect();
    assert_eq!(tokens, after, "no lease was given up for it");
    assert_eq!(contradictions(&stage.lines()), Vec::<String>::new());
    assert_eq!(manager.get("/workers").await["workers"][0]["restarts"], 1);
    assert!(
        !tree.iter().any(|&pid| is_alive(pid)),
        "nothing of the killed one is left"
    );
}

#[tokio::test]
async fn a_paused_worker_is_killed_and_started_again() {
    let stage = Stage::start(2).await;
    let changes = json!({"max_workers": 1, "worker": {
        "start_grace_seconds": 1, "heartbeat_timeout_seconds": 2}});
    let manager = stage.manager("m1", changes).await;
    stage.working(2, 0).await;
    manager.ready().await;
    let pid = manager.workers(1).await[0];
    signal(pid, Signal::SIGSTOP);
    wait::until(SOON, "it is killed", async || !is_alive(pid)).await;
    stage.working(2, boot_ms()).await;
    assert_eq!(contradictions(&stage.lines()), Vec::<String>::new());
}

#[tokio::test]
async fn a_killed_manager_takes_its_tree_with_it_and_another_has_the_cameras() {
    let stage = Stage::start(6).await;
    let grandchildren =
        json!({"max_workers": 1, "worker": {"environment": {"MISBEHAVE": "grandchild"}}});
    let mut one = stage.manager("m1", grandchildren).await;
    stage.working(6, 0).await;
    let pid = one.workers(1).await[0];
    let tree = descendants(pid);
    assert!(!tree.is_empty(), "the worker has a child of its own");
    let _two = stage.manager("m2", json!({})).await;
    wait::until(SOON, "the second one has a share", async || {
        stage.owners().await.values().any(|it| it == "m2")
    })
    .await;
    let killed = boot_ms();
    one.child.kill9_alone();
    wait::until(SOON, "the first one's tree is gone", async || {
        !is_alive(pid) && !tree.iter().any(|&pid| is_alive(pid))
    })
    .await;
    stage.holds("m2", 6).await;
    let owned_ms = boot_ms() - killed;
    stage.working(6, killed + owned_ms).await;
    println!("all cameras with the other manager after {owned_ms} ms");
    assert_eq!(contradictions(&stage.lines()), Vec::<String>::new());
}

#[tokio::test]
async fn a_paused_manager_stops_its_workers_before_the_deadline() {
    let stage = Stage::start(3).await;
    let changes = json!({"max_workers": 1, "lease_ttl_seconds": 6});
    let one = stage.manager("m1", changes).await;
    stage.working(3, 0).await;
    let pids = one.workers(1).await;
    let paused = boot_ms();
    one.child.signal(Signal::SIGSTOP);
    wait::until(SOON, "its worker is gone", async || {
        !pids.iter().any(|&pid| is_alive(pid))
    })
    .await;
    let ended_ms = boot_ms() - paused;
    assert!(ended_ms < 6_000, "within the ttl: {ended_ms} ms");
    let _two = stage.manager("m2", json!({})).await;
    stage.holds("m2", 3).await;
    one.child.signal(Signal::SIGCONT);
    stage.working(3, boot_ms()).await;
    wait::until(SOON, "the first one is back", async || {
        one.get("/healthz").await["status"] == "ok"
    })
    .await;
    assert_eq!(contradictions(&stage.lines()), Vec::<String>::new());
}

#[tokio::test]
async fn a_crash_loop_gives_the_cameras_to_another_manager() {
    let stage = Stage::start(2).await;
    let broken =
        json!({"worker": {"environment": {"MISBEHAVE": "crash"}, "crash_cooldown_seconds": 60}});
    let one = stage.manager("m1", broken).await;
    wait::until(SOON, "it gives up", async || {
        let health = one.get("/healthz").await;
        health["cameras_avoided"]
            .as_array()
            .is_some_and(|it| it.len() == 2)
    })
    .await;
    assert_eq!(one.get("/healthz").await["cameras"], 0);
    let _two = stage.manager("m2", json!({})).await;
    stage.holds("m2", 2).await;
    stage.working(2, 0).await;
}

#[tokio::test]
async fn a_worker_that_does_not_drop_a_revoked_camera_is_killed() {
    let stage = Stage::start(1).await;
    let deaf = json!({"max_workers": 1, "lease_ttl_seconds": 60, "worker": {
        "environment": {"MISBEHAVE": "deaf"}, "takeaway_limit_seconds": 0.5}});
    let manager = stage.manager("m1", deaf).await;
    manager.ready().await;
    let pid = manager.workers(1).await[0];
    let (_, lease) = stage.call("GET", "/leases/camera/cam-000/", None).await;
    let id = lease["lease_id"].as_str().unwrap();
    let reason = json!({"reason": "a test"});
    let revoked = boot_ms();
    let path = format!("/leases/{id}/revoke/");
    assert_eq!(stage.call("POST", &path, Some(reason)).await.0, 200);
    wait::until(SOON, "it is killed", async || !is_alive(pid)).await;
    let took_ms = boot_ms() - revoked;
    assert!(took_ms < 20_000, "well before the ttl: {took_ms} ms");
    stage.working(1, boot_ms()).await;
}

/// With the usual ttl there is no hurry for the rest of the worker when one camera is gone.
#[tokio::test]
async fn a_revoked_camera_is_dropped_alone() {
    let stage = Stage::start(3).await;
    let changes = json!({"max_workers": 1, "lease_ttl_seconds": 60});
    let manager = stage.manager("m1", changes).await;
    stage.working(3, 0).await;
    manager.ready().await;
    let pids = manager.workers(1).await;
    // Cordoned, so that it does not take the camera again.
    let (status, _) = stage
        .call("POST", "/runners/m1/cordon/", Some(json!({})))
        .await;
    assert_eq!(status, 200);
    wait::until(SOON, "it knows", async || {
        manager.get("/healthz").await["cordoned"] == true
    })
    .await;
    let (_, lease) = stage.call("GET", "/leases/camera/cam-001/", None).await;
    let path = format!("/leases/{}/revoke/", lease["lease_id"].as_str().unwrap());
    let reason = json!({"reason": "a test"});
    // The worker may have dropped it before the answer is here.
    let revoked = boot_ms();
    assert_eq!(stage.call("POST", &path, Some(reason)).await.0, 200);
    wait::until(SOON, "its worker dropped it", async || {
        let lines = stage.lines();
        lines
            .iter()
            .any(|it| it.at() > revoked && it.0["set"] == json!(["cam-000", "cam-002"]))
    })
    .await;
    println!("dropped after {} ms", boot_ms() - revoked);
    let dropped = boot_ms();
    stage.working(2, dropped).await;
    assert!(!stage.since(dropped).contains_key("cam-001"));
    assert_eq!(manager.worker_pids().await, pids, "the worker went on");
}

#[tokio::test]
async fn a_worker_without_a_sign_of_life_is_started_again() {
    let stage = Stage::start(1).await;
    let sick = json!({"worker": {"environment": {"MISBEHAVE": "sick"},
        "start_grace_seconds": 1, "heartbeat_timeout_seconds": 1}});
    let manager = stage.manager("m1", sick).await;
    wait::until(SOON, "it was killed and started again", async || {
        let worker = manager.get("/workers").await["workers"][0].clone();
        worker["restarts"].as_u64().is_some_and(|it| it >= 1)
    })
    .await;
}

/// The processes below this one.
fn descendants(root: i32) -> Vec<i32> {
    let mut found = vec![root];
    let mut next = 0;
    while let Some(&pid) = found.get(next) {
        let path = format!("/proc/{pid}/task/{pid}/children");
        let children = std::fs::read_to_string(path).unwrap_or_default();
        found.extend(
            children
                .split_whitespace()
                .filter_map(|it| it.parse::<i32>().ok()),
        );
        next += 1;
    }
    found.split_off(1)
}
