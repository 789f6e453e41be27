//! Workers and managers that are killed.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result};
use leasehold_blackbox::{
    cli_support::{SOON, boot_ms},
    stage::{Line, Manager, Stage, kill9},
};
use leasehold_testkit::{Proxy, wait};
use serde_json::json;

use crate::{
    Length,
    report::{Proof, Times},
};

/// A worker that lived this long did not crash quickly, and is started again immediately.
const START_GRACE: Duration = Duration::from_secs(1);
/// How long leases last.
const TTL_SECONDS: u64 = 5;

/// Waits until other processes than these have published each of these cameras, and returns how long
/// after `from` each was first published by one.
async fn taken_over(stage: &Stage, from: u64, cameras: &[String], before: &[i32]) -> Vec<u64> {
    let first = |lines: &BTreeMap<String, Vec<Line>>, camera: &String| {
        let lines = lines.get(camera)?;
        let line = lines.iter().find(|it| !before.contains(&it.pid()))?;
        Some(line.at() - from)
    };
    wait::until_some(SOON, "others process the cameras", async || {
        let lines = stage.since(from);
        cameras.iter().map(|camera| first(&lines, camera)).collect()
    })
    .await
}

/// `kill -9` of a worker.
pub async fn workers(length: Length, times: &mut Times) -> Result<()> {
    const CAMERAS: usize = 4;
    let stage = Stage::start(CAMERAS).await;
    let grace = START_GRACE.as_secs();
    let changes = json!({"max_workers": 1, "lease_ttl_seconds": 10,
        "worker": {"start_grace_seconds": grace}});
    let manager = stage.manager("m1", changes).await;
    stage.working(CAMERAS, 0).await;
    let cameras: Vec<String> = stage.since(0).into_keys().collect();
    let (mut again, mut started) = (Vec::new(), Vec::new());
    for _ in 0..length.pick(20, 100) {
        stage.working(CAMERAS, boot_ms()).await;
        tokio::time::sleep(START_GRACE).await;
        let pids = manager.worker_pids().await;
        let &pid = pids.first().context("a worker runs")?;
        let killed = boot_ms();
        kill9(pid);
        again.extend(taken_over(&stage, killed, &cameras, &pids).await);
        let lines = stage.lines();
        let up = lines.iter().find(|it| it.pid() != pid && it.at() > killed);
        started.push(up.context("another process runs")?.at() - killed);
    }
    let proof = Proof::of(&stage.lines()).await?;
    times.add(
        "worker killed: its next process is up",
        started,
        None,
        &proof,
    );
    times.add("worker killed: processed again", again, Some(1_000), &proof);
    Ok(())
}

/// A manager that is killed, and one whose host is lost: nothing of it reaches the server any more, so that
/// its stream stays open and only the ttl ends its leases.
pub async fn managers(length: Length, times: &mut Times) -> Result<()> {
    let rounds = length.pick(5, 25);
    killed(
        rounds,
        false,
        "manager killed: processed by another",
        1_000,
        times,
    )
    .await?;
    let aim_ms = (TTL_SECONDS + 1) * 1_000;
    let what = format!("host of a manager lost, ttl {TTL_SECONDS} s: processed by another");
    killed(rounds, true, &what, aim_ms, times).await
}

async fn killed(
    rounds: usize,
    is_lost: bool,
    what: &str,
    aim_ms: u64,
    times: &mut Times,
) -> Result<()> {
    const CAMERAS: usize = 8;
    let stage = Stage::start(CAMERAS).await;
    let proxy = Proxy::start(stage.server.address).await;
    let settings = |url: String| json!({"max_workers": 1, "lease_ttl_seconds": TTL_SECONDS, "control_plane_url": url});
    // Behind a proxy no death is proven.
    let address = if is_lost {
        proxy.addr()
    } else {
        stage.server.address
    };
    let first = || settings(format!("http://{address}"));
    let _two = stage.manager("m2", settings(stage.url())).await;
    stage.holds("m2", CAMERAS).await;
    let mut took = Vec::new();
    for _ in 0..rounds {
        let mut one = stage.manager("m1", first()).await;
        stage.holds("m1", CAMERAS / 2).await;
        stage.working(CAMERAS, boot_ms()).await;
        one.ready().await;
        took.extend(round(&stage, &mut one, is_lost.then_some(&proxy)).await);
        stage.holds("m2", CAMERAS).await;
        stage.working(CAMERAS, boot_ms()).await;
        proxy.pass();
    }
    let proof = Proof::of(&stage.lines()).await?;
    times.add(what, took, Some(aim_ms), &proof);
    Ok(())
}

async fn round(stage: &Stage, one: &mut Manager, lost: Option<&Proxy>) -> Vec<u64> {
    let owners = stage.owners().await;
    let of_one = owners.into_iter().filter(|(_, owner)| owner == "m1");
    let cameras: Vec<String> = of_one.map(|(camera, _)| camera).collect();
    let before = one.worker_pids().await;
    let killed = boot_ms();
    if let Some(proxy) = lost {
        proxy.blackhole();
    }
    one.child.kill9_alone();
    taken_over(stage, killed, &cameras, &before).await
}
