//! The control plane is away, or out of one manager's reach, under each policy of L13.

use std::time::Duration;

use anyhow::Result;
use leasehold_blackbox::{
    cli_support::{SOON, boot_ms},
    stage::{Manager, Stage, changes, longest_gaps},
};
use leasehold_testkit::{Proxy, wait};
use serde_json::{Value, json};

use crate::{
    Length,
    report::{Proof, table},
};

const CAMERAS: usize = 64;
const TTL_SECONDS: u64 = 5;
/// The outage is over before the grace is.
const SPARE_SECONDS: u64 = 60;
const POLICIES: [&str; 3] = ["continue", "hold", "fail_closed"];
/// Each camera is published so often, in seconds.
const TICK: &str = "0.2";
/// A camera without a message for so long was interrupted.
const INTERRUPTED_MS: u64 = 1_000;
/// How long 64 cameras may take to be where they belong on a busy machine.
const SETTLED: Duration = Duration::from_secs(120);

const HEADER: [&str; 8] = [
    "policy",
    "cameras interrupted",
    "longest pause",
    "changed hands",
    "two owners",
    "messages under an older token",
    "accepted of those",
    "the policy says",
];

fn settings(policy: &str, seconds: u64, url: &str) -> Value {
    json!({"lease_ttl_seconds": TTL_SECONDS, "on_outage": policy, "control_plane_url": url,
        "outage_grace_seconds": seconds + SPARE_SECONDS,
        // Where managers cannot ask each other, as when a network is cut between them.
        "advertise_host": "127.0.0.2",
        "worker": {"environment": {"TICK": TICK}, "start_grace_seconds": 30}})
}

/// Two managers with half of the cameras each.
async fn two(stage: &Stage, one: Value, other: Value) -> [Manager; 2] {
    let one = stage.manager("m1", one).await;
    settled(stage, &[("m1", CAMERAS)]).await;
    let other = stage.manager("m2", other).await;
    settled(stage, &[("m1", CAMERAS / 2), ("m2", CAMERAS / 2)]).await;
    [one, other]
}

/// Every camera is processed, and so many are with each manager.
async fn settled(stage: &Stage, shares: &[(&str, usize)]) {
    wait::until(SETTLED, "every manager has its share", async || {
        let owners = stage.owners().await;
        let count = |runner: &str| owners.values().filter(|it| *it == runner).count();
        shares.iter().all(|(runner, share)| count(runner) == *share)
    })
    .await;
    processed(stage).await;
}

/// Every camera was processed after this moment.
async fn processed(stage: &Stage) {
    let now = boot_ms();
    wait::until(SETTLED, "every camera is processed", async || {
        stage.since(now).len() == CAMERAS
    })
    .await;
}

async fn is_well(manager: &Manager) {
    wait::until(SETTLED, "the manager is itself again", async || {
        manager.get("/healthz").await["status"] == "ok"
    })
    .await;
}

async fn row(stage: &Stage, policy: &str, since: u64, says: &str) -> Result<[String; 8]> {
    let lines = stage.since(since);
    let gaps = longest_gaps(&lines);
    let interrupted = gaps.iter().filter(|gap| **gap > INTERRUPTED_MS).count();
    let longest = gaps.iter().max().copied().unwrap_or(u64::MAX);
    let moved: std::collections::BTreeSet<_> = changes(&lines)
        .iter()
        .filter(|[last, first]| first.token() > last.token())
        .filter_map(|[_, first]| first.camera())
        .collect();
    let proof = Proof::of(&stage.lines()).await?;
    Ok([
        policy.to_owned(),
        format!("{interrupted} of {CAMERAS}"),
        format!("{longest} ms"),
        moved.len().to_string(),
        proof.overlaps.to_string(),
        proof.stale.to_string(),
        proof.accepted.to_string(),
        says.to_owned(),
    ])
}

/// The control plane is killed and comes back.
pub async fn control_plane(length: Length) -> Result<()> {
    let seconds = length.pick(30, 300);
    let mut table = table(&HEADER);
    for policy in POLICIES {
        let mut stage = Stage::start(CAMERAS).await;
        let url = stage.url();
        let of = || settings(policy, seconds, &url);
        let managers = two(&stage, of(), of()).await;
        let away = boot_ms();
        stage.server.child.kill9();
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        stage.server.restart().await;
        for manager in &managers {
            is_well(manager).await;
        }
        processed(&stage).await;
        let says = match policy {
            "fail_closed" => "all stop at their deadline",
            _ => "none is interrupted, none twice",
        };
        table.add_row(row(&stage, policy, away, says).await?);
    }
    println!(
        "\ncontrol plane away for {seconds} s, ttl {TTL_SECONDS} s, grace {} s, two managers with {CAMERAS} cameras\n\n{table}",
        seconds + SPARE_SECONDS
    );
    Ok(())
}

/// One of two managers does not reach the control plane, nor the other manager.
pub async fn isolation(length: Length) -> Result<()> {
    let seconds = length.pick(30, 300);
    let mut table = table(&HEADER);
    for policy in POLICIES {
        let stage = Stage::start(CAMERAS).await;
        let proxy = Proxy::start(stage.server.address).await;
        let behind = settings(policy, seconds, &format!("http://{}", proxy.addr()));
        let beside = settings(policy, seconds, &stage.url());
        let [one, other] = two(&stage, behind, beside).await;
        let cut = boot_ms();
        proxy.blackhole();
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        proxy.pass();
        is_well(&one).await;
        is_well(&other).await;
        wait::until(SOON, "every camera has one owner", async || {
            stage.owners().await.len() == CAMERAS
        })
        .await;
        processed(&stage).await;
        let says = match policy {
            "continue" => "goes on where it is; another may work too",
            "hold" => "goes on where it is; nobody else begins",
            _ => "stops, and another begins",
        };
        table.add_row(row(&stage, policy, cut, says).await?);
    }
    println!(
        "\none of two managers cut off for {seconds} s, ttl {TTL_SECONDS} s, grace {} s, {CAMERAS} cameras\n\n{table}",
        seconds + SPARE_SECONDS
    );
    Ok(())
}
