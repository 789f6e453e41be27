//! The network between managers and the control plane is cut: packets leave and never arrive. Needs root.
//!
//! The control plane and one manager are on one side of a cable, the other manager is on the other side.
//! Each side is asked from there.

use std::sync::Arc;

use leasehold_testkit::{Namespaces, wait};
use serde_json::{Value, json};

use super::{
    outage::standing,
    stage::{Line, Manager, Stage, longest_gap, overlaps, stale},
};
use crate::cli_support::{SOON, boot_ms};

const CAMERAS: usize = 4;
const TTL_MS: u64 = 3_000;

struct Case {
    network: Arc<Namespaces>,
    stage: Stage,
    /// On the far side.
    one: Manager,
}

impl Case {
    /// One manager on the far side with every camera.
    async fn start(changes: Value) -> Self {
        let network = Arc::new(Namespaces::create().await.expect("network namespaces"));
        let stage = Stage::start_in(network.clone(), CAMERAS).await;
        let one = stage.far_manager("m1", changes).await;
        stage.working(CAMERAS, 0).await;
        one.ready().await;
        Self {
            network,
            stage,
            one,
        }
    }

    async fn is_well(&self) {
        wait::until(SOON, "it is itself again", async || {
            self.one.get("/healthz").await["status"] == "ok"
        })
        .await;
    }
}

#[tokio::test]
async fn a_cut_shorter_than_the_ttl_changes_nothing() {
    let case = Case::start(json!({"on_outage": "fail_closed", "lease_ttl_seconds": 6})).await;
    let pids = case.one.worker_pids().await;
    let from = boot_ms();
    case.network.cut().await.expect("cut");
    wait::until(SOON, "a part of the ttl passes", async || {
        boot_ms() > from + 1_500
    })
    .await;
    case.network.heal().await.expect("healed");
    case.stage.working(CAMERAS, from + 2 * 6_000).await;
    assert_eq!(case.one.worker_pids().await, pids);
    for (camera, lines) in case.stage.since(0) {
        let first = lines[0].token();
        assert!(lines.iter().all(|it| it.token() == first), "{camera}");
    }
}

/// Until every lease is in its grace, and on for another ttl.
async fn goes_on(case: &Case) -> u64 {
    let cut = boot_ms();
    case.network.cut().await.expect("cut");
    wait::until(SOON, "every lease is in its grace", async || {
        standing(&case.one, CAMERAS, "grace").await
    })
    .await;
    case.stage.working(CAMERAS, cut + 2 * TTL_MS).await;
    case.network.heal().await.expect("healed");
    cut
}

#[tokio::test]
async fn a_cut_longer_than_the_ttl_and_shorter_than_the_grace_interrupts_nothing_with_hold() {
    let changes = json!({"on_outage": "hold", "outage_grace_seconds": 60});
    let case = Case::start(changes).await;
    let pids = case.one.worker_pids().await;
    let cut = goes_on(&case).await;
    wait::until(SOON, "its leases are kept", async || {
        standing(&case.one, CAMERAS, "owned").await
    })
    .await;
    case.stage.working(CAMERAS, boot_ms()).await;
    assert_eq!(case.one.worker_pids().await, pids, "no worker was touched");
    let gap = longest_gap(&case.stage.since(cut));
    assert!(gap < TTL_MS, "{gap} ms");
    for (camera, lines) in case.stage.since(0) {
        let first = lines[0].token();
        assert!(lines.iter().all(|it| it.token() == first), "{camera}");
    }
}

/// With `continue` anybody may have the cameras after the ttl: the manager goes on meanwhile, and has to
/// acquire them again when it is heard.
#[tokio::test]
async fn a_cut_longer_than_the_ttl_and_shorter_than_the_grace_is_worked_through_with_continue() {
    let changes = json!({"on_outage": "continue", "outage_grace_seconds": 60});
    let case = Case::start(changes).await;
    let tokens = case.stage.since(0);
    let cut = goes_on(&case).await;
    let within = case.stage.since(cut);
    assert!(longest_gap(&within) < TTL_MS, "none stopped in the cut");
    wait::until(SOON, "they are acquired again", async || {
        let lines = case.stage.since(cut);
        lines.iter().all(|(camera, lines)| {
            let newest = lines.last().map(Line::token);
            newest > tokens[camera].last().map(Line::token)
        })
    })
    .await;
    case.is_well().await;
    assert_eq!(stale(&case.stage.lines()), 0);
    assert!(overlaps(&case.stage.lines()).is_empty());
}

/// Past the deadline, or past the grace: the far one stops, and only then the near one begins.
async fn stops_before_another_begins(changes: Value) {
    let case = Case::start(changes).await;
    let _two = case.stage.manager("m2", json!({})).await;
    case.stage.holds("m2", CAMERAS / 2).await;
    case.stage.working(CAMERAS, boot_ms()).await;
    let cut = boot_ms();
    case.network.cut().await.expect("cut");
    case.stage.holds("m2", CAMERAS).await;
    case.stage.working(CAMERAS, boot_ms()).await;
    println!("all with the near one after {} ms", boot_ms() - cut);
    wait::until(SOON, "the far one has stopped", async || {
        case.one.worker_pids().await.is_empty()
    })
    .await;
    case.network.heal().await.expect("healed");
    case.is_well().await;
    case.stage.working(CAMERAS, boot_ms()).await;
    let lines = case.stage.lines();
    assert_eq!(stale(&lines), 0);
    assert!(overlaps(&lines).is_empty());
}

#[tokio::test]
async fn fail_closed_stops_before_another_begins() {
    stops_before_another_begins(json!({"on_outage": "fail_closed"})).await;
}

#[tokio::test]
async fn past_the_grace_hold_stops_before_another_begins() {
    let changes = json!({"on_outage": "hold", "outage_grace_seconds": 4});
    stops_before_another_begins(changes).await;
}
