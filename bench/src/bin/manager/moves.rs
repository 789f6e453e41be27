//! Cameras that move because somebody wants it, and cameras that are new.

use anyhow::{Result, ensure};
use leasehold_blackbox::{
    cli_support::{SOON, boot_ms},
    stage::{Stage, camera, gaps},
};
use leasehold_testkit::wait;
use serde_json::json;

use crate::{
    Length,
    report::{Proof, Times},
};

const CAMERAS: usize = 8;
/// What 19 of 20 cameras may be without a worker, in ms.
const AIM_MS: u64 = 1_000;

/// A runner is drained, comes back and gets its share again.
pub async fn drains(length: Length, times: &mut Times) -> Result<()> {
    let stage = Stage::start(CAMERAS).await;
    let _one = stage.manager("m1", json!({})).await;
    stage.holds("m1", CAMERAS).await;
    let _two = stage.manager("m2", json!({})).await;
    stage.holds("m2", CAMERAS / 2).await;
    let (mut drained, mut balanced) = (Vec::new(), Vec::new());
    for _ in 0..length.pick(5, 25) {
        let from = boot_ms();
        stage.working(CAMERAS, from).await;
        stage.call("POST", "/runners/m1/drain/", None).await;
        stage.holds("m2", CAMERAS).await;
        stage.working(CAMERAS, boot_ms()).await;
        drained.extend(gaps(&stage.since(from)));
        let from = boot_ms();
        stage.working(CAMERAS, from).await;
        stage.call("POST", "/runners/m1/uncordon/", None).await;
        stage.holds("m1", CAMERAS / 2).await;
        stage.working(CAMERAS, boot_ms()).await;
        balanced.extend(gaps(&stage.since(from)));
    }
    let proof = Proof::of(&stage.lines()).await?;
    times.add("drain, handed over: gap", drained, Some(AIM_MS), &proof);
    times.add("balance, handed over: gap", balanced, Some(AIM_MS), &proof);
    Ok(())
}

/// A group goes from one version to another, and back with the next deployment.
pub async fn versions(length: Length, times: &mut Times) -> Result<()> {
    let stage = Stage::start(CAMERAS).await;
    let _blue = stage.manager("blue", json!({})).await;
    stage.holds("blue", CAMERAS).await;
    let mut green = None;
    let mut moved = Vec::new();
    for round in 0..length.pick(4, 20) {
        let from = boot_ms();
        stage.working(CAMERAS, from).await;
        let (runner, version) = [("green", "2"), ("blue", "1")][round % 2];
        let request = json!({"tenant_id": "t", "site_id": "s", "deployment_group": "default",
            "to_version": version, "step": 4});
        let (status, problem) = stage.call("POST", "/deployments/", Some(request)).await;
        ensure!(status == 201, "{problem}");
        if green.is_none() {
            let changes = json!({"deployment_version": "2"});
            green = Some(stage.manager("green", changes).await);
        }
        wait::until(SOON, "the deployment is done", async || {
            let path = "/deployments/t/s/default/";
            stage.call("GET", path, None).await.1["state"] == "done"
        })
        .await;
        stage.holds(runner, CAMERAS).await;
        stage.working(CAMERAS, boot_ms()).await;
        moved.extend(gaps(&stage.since(from)));
    }
    let proof = Proof::of(&stage.lines()).await?;
    times.add("blue/green, handed over: gap", moved, Some(AIM_MS), &proof);
    Ok(())
}

/// The workers' command changes: each worker is replaced by one that is ready.
pub async fn commands(length: Length, times: &mut Times) -> Result<()> {
    let stage = Stage::start(CAMERAS).await;
    let manager = stage.manager("m1", json!({"max_workers": 1})).await;
    stage.working(CAMERAS, 0).await;
    manager.ready().await;
    let mut replaced = Vec::new();
    for round in 0..length.pick(5, 25) {
        let version = format!("v{round}");
        let from = boot_ms();
        stage.working(CAMERAS, from).await;
        let changes = json!({"max_workers": 1, "worker": {"environment": {"VERSION": version}}});
        stage.rewrite(&manager, "m1", &changes);
        wait::until(SOON, "the new worker publishes everything", async || {
            let since = stage.since(from);
            let is_new = |it: &leasehold_blackbox::stage::Line| it.0["version"] == version.as_str();
            since.len() == CAMERAS && since.values().all(|it| it.last().is_some_and(is_new))
        })
        .await;
        replaced.extend(gaps(&stage.since(from)));
        wait::until(SOON, "the old one is gone", async || {
            manager.worker_pids().await.len() == 1
        })
        .await;
    }
    let proof = Proof::of(&stage.lines()).await?;
    times.add(
        "worker restarted for another command: gap",
        replaced,
        Some(AIM_MS),
        &proof,
    );
    Ok(())
}

/// Cameras that are added to a manager at work, and 64 that a manager finds when it starts.
pub async fn acquisition(length: Length, times: &mut Times) -> Result<()> {
    let stage = Stage::start(1).await;
    let manager = stage.manager("m1", json!({})).await;
    stage.working(1, 0).await;
    manager.ready().await;
    let mut added = Vec::new();
    for n in 1..=length.pick(20, 60) {
        let name = camera(n);
        let from = boot_ms();
        stage.add_camera(n).await;
        let first = wait::until_some(SOON, "it is processed", async || {
            Some(stage.since(from).get(&name)?.first()?.at())
        });
        added.push(first.await - from);
    }
    let proof = Proof::of(&stage.lines()).await?;
    times.add("camera added: acquired and processed", added, None, &proof);

    let stage = Stage::start(64).await;
    let from = boot_ms();
    let changes = json!({"lease_ttl_seconds": 10, "worker": {"environment": {"TICK": "0.1"}}});
    let _manager = stage.manager("m1", changes).await;
    stage.working(64, 0).await;
    let firsts = stage.since(from).into_values();
    let firsts = firsts.filter_map(|lines| Some(lines.first()?.at() - from));
    let firsts = firsts.collect();
    let proof = Proof::of(&stage.lines()).await?;
    times.add(
        "manager started with 64 cameras: processed",
        firsts,
        None,
        &proof,
    );
    Ok(())
}
