//! A manager that is cut off from the control plane while another one is not, under each policy of L13: what
//! was published under an older token after a newer one would have been accepted by nobody, and with
//! `hold` and `fail_closed` there is none.

use leasehold_testkit::{Proxy, length::Length, wait};
use serde_json::json;

use super::stage::{Line, Manager, Stage, stale};
use crate::cli_support::{SOON, boot_ms};

const CAMERAS: usize = 4;

struct Cut {
    stage: Stage,
    proxy: Proxy,
    one: Manager,
    _two: Manager,
}

/// One manager behind a proxy, another one beside it, each with half of the cameras.
async fn cut_off(policy: &str, grace_seconds: u64) -> Cut {
    let stage = Stage::start(CAMERAS).await;
    let proxy = Proxy::start(stage.server.address).await;
    let behind = json!({"lease_ttl_seconds": 2, "on_outage": policy,
        "outage_grace_seconds": grace_seconds, "control_plane_url": format!("http://{}", proxy.addr())});
    let one = stage.manager("m1", behind).await;
    stage.working(CAMERAS, 0).await;
    one.ready().await;
    let two = stage.manager("m2", json!({"lease_ttl_seconds": 2})).await;
    // Nothing is on the move any more.
    stage.holds("m2", CAMERAS / 2).await;
    stage.working(CAMERAS, boot_ms()).await;
    proxy.blackhole();
    Cut {
        stage,
        proxy,
        one,
        _two: two,
    }
}

async fn runs_nothing(one: &Manager) {
    wait::until(SOON, "the one that is cut off has stopped", async || {
        one.get("/healthz").await["cameras"] == 0 && one.worker_pids().await.is_empty()
    })
    .await;
}

#[tokio::test]
async fn fail_closed_stops_before_another_begins() {
    let cut = cut_off("fail_closed", 0).await;
    runs_nothing(&cut.one).await;
    cut.stage.holds("m2", CAMERAS).await;
    cut.stage.working(CAMERAS, boot_ms()).await;
    assert_eq!(stale(&cut.stage.lines()), 0);
    cut.proxy.pass();
    wait::until(SOON, "it is itself again", async || {
        cut.one.get("/healthz").await["status"] == "ok"
    })
    .await;
    cut.stage.working(CAMERAS, boot_ms()).await;
    assert_eq!(stale(&cut.stage.lines()), 0);
}

#[tokio::test]
async fn hold_goes_on_alone_and_stops_before_another_begins() {
    let grace = Length::current().pick(4, 300);
    let cut = cut_off("hold", grace).await;
    let at = boot_ms();
    let held = cut.stage.owners().await;
    let held = held.values().filter(|it| *it == "m1").count();
    wait::until(SOON, "its leases are in their grace", async || {
        super::outage::standing(&cut.one, held, "grace").await
    })
    .await;
    cut.stage.working(CAMERAS, boot_ms()).await;
    let owners = cut.stage.owners().await;
    let still = owners.values().filter(|it| *it == "m1").count();
    assert_eq!(still, held, "nobody else gets them meanwhile");
    let within = std::time::Duration::from_secs(grace) + SOON;
    wait::until(within, "the one that is cut off has stopped", async || {
        cut.one.get("/healthz").await["cameras"] == 0
    })
    .await;
    println!("went on for {} ms", boot_ms() - at);
    cut.stage.holds("m2", CAMERAS).await;
    cut.stage.working(CAMERAS, boot_ms()).await;
    assert_eq!(stale(&cut.stage.lines()), 0);
}

#[tokio::test]
async fn continue_may_work_twice_and_only_the_newer_token_counts() {
    let cut = cut_off("continue", 60).await;
    let at = boot_ms();
    cut.stage.holds("m2", CAMERAS).await;
    cut.stage.working(CAMERAS, boot_ms()).await;
    let lines = cut.stage.lines();
    println!(
        "{} lines under an older token, {} ms after the cut",
        stale(&lines),
        boot_ms() - at
    );
    // A receiver that drops what is older than it has seen accepts each camera from one worker at a time.
    let mut newest = std::collections::BTreeMap::new();
    let mut sorted: Vec<&Line> = lines.iter().filter(|it| it.camera().is_some()).collect();
    sorted.sort_by_key(|it| it.at());
    for line in sorted {
        let (token, pid) = newest
            .entry(line.camera())
            .or_insert((line.token(), line.pid()));
        if line.token() > *token {
            (*token, *pid) = (line.token(), line.pid());
        } else if line.token() == *token {
            assert_eq!(line.pid(), *pid, "one token, two workers: {line:?}");
        }
    }
    // A definite no ends it as soon as the control plane is heard again.
    cut.proxy.pass();
    wait::until(SOON, "the one that was cut off has let go", async || {
        let held = cut.one.get("/leases").await;
        let held = held["leases"].as_array().cloned().unwrap_or_default();
        let owners = cut.stage.owners().await;
        let mine = owners.values().filter(|it| *it == "m1").count();
        held.len() == mine
    })
    .await;
}
