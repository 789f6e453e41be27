//! Cameras over workers and managers.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_testkit::wait;
use serde_json::json;

use super::stage::{Stage, contradictions};
use crate::cli_support::{SOON, boot_ms};

#[tokio::test]
async fn sixty_four_cameras_fill_four_workers() {
    let stage = Stage::start(64).await;
    let manager = stage.manager("m1", json!({"lease_ttl_seconds": 10})).await;
    stage.working(64, 0).await;
    wait::until(SOON, "everything is ready", async || {
        manager.get("/ready").await["cameras"] == "64/64"
    })
    .await;
    let mut by_worker: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in stage.lines() {
        if let Some(camera) = line.camera() {
            let cameras = by_worker.entry(line.worker().to_owned()).or_default();
            cameras.insert(camera.to_owned());
        }
    }
    let sizes: Vec<usize> = by_worker.values().map(BTreeSet::len).collect();
    assert_eq!(sizes, [16, 16, 16, 16]);
    assert_eq!(contradictions(&stage.lines()), Vec::<String>::new());
    let leases = manager.get("/leases").await.to_string();
    let workers = manager.get("/workers").await.to_string();
    let health = manager.get("/healthz").await;
    assert_eq!(health["status"], "ok", "{health}");
    let log = manager.child.lines().join("\n");
    for shown in [&leases, &workers, &health.to_string(), &log] {
        assert!(!shown.contains("hush"), "a login is shown: {shown}");
    }
}

#[tokio::test]
async fn two_managers_have_each_camera_once() {
    let stage = Stage::start(16).await;
    let _one = stage.manager("m1", json!({"max_workers": 2})).await;
    stage.working(16, 0).await;
    let _two = stage.manager("m2", json!({"max_workers": 2})).await;
    wait::until(SOON, "both have a share", async || {
        let owners = stage.owners().await;
        let of = |runner: &str| owners.values().filter(|it| *it == runner).count();
        owners.len() == 16 && of("m1") >= 4 && of("m2") >= 4
    })
    .await;
    stage.working(16, boot_ms()).await;
    assert_eq!(contradictions(&stage.lines()), Vec::<String>::new());
}

/// How many acquires came as plain calls.
async fn plain_acquires(stage: &Stage) -> u64 {
    let text = reqwest::get(format!("{}/metrics", stage.url())).await;
    let text = text.expect("answered").text().await.expect("a text");
    let lines = text.lines().filter(|line| {
        line.starts_with("leasehold_http_requests_total{") && line.contains("/leases/acquire")
    });
    let counts = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
    counts.sum()
}

#[tokio::test]
async fn cameras_are_acquired_over_the_stream() {
    let stage = Stage::start(1).await;
    let manager = stage.manager("m1", json!({})).await;
    stage.working(1, 0).await;
    wait::until(SOON, "the stream is up", async || {
        manager.get("/healthz").await["control_plane"]["streaming"] == true
    })
    .await;
    let before = plain_acquires(&stage).await;
    stage.add_camera(1).await;
    stage.working(2, boot_ms()).await;
    assert_eq!(plain_acquires(&stage).await, before);
    assert_eq!(contradictions(&stage.lines()), Vec::<String>::new());
}

#[tokio::test]
async fn a_manager_reports_how_busy_its_host_is_if_it_may() {
    let stage = Stage::start(1).await;
    let metrics = async |runner: &str| {
        let (_, shown) = stage
            .call("GET", &format!("/runners/{runner}/"), None)
            .await;
        shown["metrics"].clone()
    };
    let _quiet = stage.manager("m1", json!({})).await;
    let _open = stage.manager("m2", json!({"report_load": true})).await;
    wait::until(SOON, "the load is reported", async || {
        let load = metrics("m2").await["load"].as_f64();
        load.is_some_and(|load| (0.0..=1.0).contains(&load))
    })
    .await;
    wait::until(SOON, "the other one reports as well", async || {
        metrics("m1").await["workers"].is_u64()
    })
    .await;
    assert!(metrics("m1").await["load"].is_null());
}
