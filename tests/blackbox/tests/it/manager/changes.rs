//! Cameras that come, change and go: only their worker notices.

use leasehold_testkit::wait;
use serde_json::json;

use super::stage::{Stage, camera, contradictions};
use crate::cli_support::{SOON, boot_ms};

#[tokio::test]
async fn only_the_worker_of_a_changed_camera_notices() {
    let stage = Stage::start(4).await;
    let changes =
        json!({"max_workers": 2, "max_cameras_per_worker": 3, "heartbeat_interval_seconds": 1});
    let manager = stage.manager("m1", changes).await;
    stage.working(4, 0).await;
    let before = manager.workers(2).await;
    let worker_of = |camera: &str| {
        let lines = stage.lines();
        let line = lines.iter().rev().find(|it| it.camera() == Some(camera));
        line.expect("it is processed").worker().to_owned()
    };
    let sets = |worker: &str, at: u64| {
        let lines = stage.lines();
        lines
            .iter()
            .filter(|it| it.at() > at && it.worker() == worker && it.0["set"].is_array())
            .count()
    };
    manager.ready().await;
    let last = worker_of("cam-003");
    let others: Vec<String> = (0..3).map(|n| worker_of(&camera(n))).collect();
    let first = others.iter().find(|it| **it != last).cloned();
    let first = first.expect("cameras are on both workers");

    let edited = boot_ms();
    let zone = json!({"zones": [{"zone_id": 1, "name": "z", "kind": "include",
        "polygon": [[0, 0], [1, 0], [0, 1]]}]});
    let path = "/tenants/t/sites/s/cameras/cam-003/";
    let (status, problem) = stage.call("PUT", path, Some(zone)).await;
    assert_eq!(status, 200, "{problem}");
    wait::until(SOON, "its worker has the zone", async || {
        stage
            .lines()
            .iter()
            .any(|it| it.at() > edited && it.0["zones"]["cam-003"] == 1)
    })
    .await;
    assert_eq!(sets(&first, edited), 0, "the other worker noticed nothing");

    let added = boot_ms();
    stage.add_camera(9).await;
    wait::until(SOON, "a new camera is processed", async || {
        stage.since(added).contains_key("cam-009")
    })
    .await;
    let (added_to, other) = if worker_of("cam-009") == first {
        (&first, &last)
    } else {
        (&last, &first)
    };
    assert!(sets(added_to, added) >= 1);
    assert_eq!(sets(other, added), 0, "the other worker noticed nothing");

    let removed = boot_ms();
    let removed_from = worker_of("cam-000");
    let (status, _) = stage
        .call("DELETE", "/tenants/t/sites/s/cameras/cam-000/", None)
        .await;
    assert_eq!(status, 200);
    wait::until(SOON, "it is not processed any more", async || {
        manager.get("/healthz").await["cameras"] == 4 && sets(&removed_from, removed) >= 1
    })
    .await;
    let gone = boot_ms();
    stage.working(4, gone).await;
    assert!(!stage.since(gone).contains_key("cam-000"));
    assert_eq!(
        manager.worker_pids().await,
        before,
        "no worker was started again"
    );
    assert_eq!(contradictions(&stage.lines()), Vec::<String>::new());
}

#[tokio::test]
async fn a_worker_that_takes_no_changes_is_started_again() {
    let stage = Stage::start(1).await;
    let rigid = json!({"max_workers": 1, "worker": {"environment": {"MISBEHAVE": "rigid"}}});
    let _manager = stage.manager("m1", rigid).await;
    stage.working(1, 0).await;
    stage.add_camera(5).await;
    wait::until(SOON, "the new camera is processed", async || {
        stage.since(0).contains_key("cam-005")
    })
    .await;
    stage.working(2, boot_ms()).await;
    assert_eq!(contradictions(&stage.lines()), Vec::<String>::new());
}
