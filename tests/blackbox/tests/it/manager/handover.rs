//! Cameras go from one manager to another by hand-over (L18): the first goes on until the second is ready.

use leasehold_testkit::wait;
use nix::sys::signal::Signal;
use serde_json::json;

use super::stage::{Manager, Stage, contradictions, gaps, tokens_grow};
use crate::cli_support::{SOON, boot_ms};

/// Far more than a hand-over takes on a busy machine, and far less than waiting for the lease's end would. How long
/// it takes is measured in `bench`.
const GAP_MS: u64 = 20_000;

/// The leases end long after the test.
fn long() -> serde_json::Value {
    json!({"lease_ttl_seconds": 60, "heartbeat_interval_seconds": 1})
}

/// The gap of each camera that changed its worker process, sorted.
fn moved(stage: &Stage, since: u64) -> Vec<u64> {
    let lines = stage.since(since);
    assert!(tokens_grow(&lines), "{lines:?}");
    gaps(&lines)
}

async fn registered(manager: &Manager) {
    wait::until(SOON, "the manager is there", async || {
        manager.get("/healthz").await["registered"] == true
    })
    .await;
}

/// Every change of hands was a hand-over: no camera was free in between, and the gaps are short.
async fn handed_over(stage: &Stage, since: u64, cameras: usize) {
    let gaps = moved(stage, since);
    println!("gap of each camera in ms: {gaps:?}");
    assert_eq!(gaps.len(), cameras);
    assert!(gaps.iter().all(|gap| *gap < GAP_MS), "{gaps:?}");
    assert_eq!(contradictions(&stage.lines()), Vec::<String>::new());
    let path = "/events/?kind=camera&type=handoff_prepared&limit=1000";
    let (_, events) = stage.call("GET", path, None).await;
    let prepared = events["events"].as_array().map_or(0, Vec::len);
    assert_eq!(prepared, cameras, "{events}");
}

#[tokio::test]
async fn a_drain_hands_every_camera_over() {
    let stage = Stage::start(8).await;
    let one = stage
        .manager(
            "m1",
            json!({"drain_batch": 3, "lease_ttl_seconds": 60, "heartbeat_interval_seconds": 1}),
        )
        .await;
    stage.working(8, 0).await;
    one.ready().await;
    let two = stage.manager("m2", long()).await;
    registered(&two).await;
    // What the newcomer gets for balance is over before the drain begins.
    stage.holds("m2", 4).await;
    stage.working(8, boot_ms()).await;
    let since = stage.from_now(8).await;
    let (status, _) = stage.call("POST", "/runners/m1/drain/", None).await;
    assert_eq!(status, 200);
    stage.holds("m2", 8).await;
    stage.working(8, boot_ms()).await;
    let drained = moved(&stage, since);
    println!("gap of each drained camera in ms: {drained:?}");
    assert_eq!(drained.len(), 4);
    assert!(drained.iter().all(|gap| *gap < GAP_MS), "{drained:?}");
    handed_over(&stage, 0, 8).await;
}

#[tokio::test]
async fn a_hard_drain_gives_everything_up_at_once() {
    let stage = Stage::start(6).await;
    let one = stage.manager("m1", json!({})).await;
    stage.working(6, 0).await;
    one.ready().await;
    let _two = stage.manager("m2", json!({})).await;
    // What the newcomer gets for balance is handed over before the drain begins.
    stage.holds("m2", 3).await;
    stage.working(6, boot_ms()).await;
    let offers = async || {
        let path = "/events/?kind=camera&type=handoff_offered&limit=1000";
        let (_, events) = stage.call("GET", path, None).await;
        events["events"].as_array().map_or(0, Vec::len)
    };
    let before = offers().await;
    let (status, _) = stage
        .call("POST", "/runners/m1/drain/?hard=true", None)
        .await;
    assert_eq!(status, 200);
    stage.holds("m2", 6).await;
    stage.working(6, boot_ms()).await;
    assert_eq!(offers().await, before, "nothing was handed over");
    assert_eq!(contradictions(&stage.lines()), Vec::<String>::new());
}

#[tokio::test]
async fn a_newcomer_gets_its_share_by_hand_over() {
    let stage = Stage::start(12).await;
    let _one = stage.manager("m1", long()).await;
    let since = stage.from_now(12).await;
    let _two = stage.manager("m2", long()).await;
    stage.holds("m2", 6).await;
    stage.working(12, boot_ms()).await;
    handed_over(&stage, since, 6).await;
}

/// Until its worker runs, and again while it drops cameras, a manager takes this long.
fn slow(start: &str, change: &str) -> serde_json::Value {
    json!({"worker": {"environment": {"SLOW_START": start, "SLOW_CHANGE": change}}})
}

#[tokio::test]
async fn a_successor_that_dies_before_it_is_ready_costs_nothing() {
    let stage = Stage::start(3).await;
    let one = stage.manager("m1", json!({})).await;
    stage.working(3, 0).await;
    one.ready().await;
    let mut two = stage.manager("m2", slow("30", "0")).await;
    registered(&two).await;
    let since = stage.from_now(3).await;
    stage.call("POST", "/runners/m1/drain/", None).await;
    two.child.wait_for_line("worker started", SOON).await;
    two.child.signal(Signal::SIGKILL);
    stage.working(3, boot_ms()).await;
    let _three = stage.manager("m3", json!({})).await;
    stage.holds("m3", 3).await;
    stage.working(3, boot_ms()).await;
    let gaps = moved(&stage, since);
    println!("gap of each camera in ms: {gaps:?}");
    assert_eq!(gaps.len(), 3, "from the first to the third");
    assert!(gaps.iter().all(|gap| *gap < GAP_MS), "{gaps:?}");
    assert_eq!(contradictions(&stage.lines()), Vec::<String>::new());
}

#[tokio::test]
async fn a_successor_that_dies_after_it_was_ready_is_followed_by_another() {
    let stage = Stage::start(1).await;
    let one = stage.manager("m1", slow("0", "2")).await;
    stage.working(1, 0).await;
    one.ready().await;
    let mut two = stage.manager("m2", json!({})).await;
    registered(&two).await;
    let since = stage.from_now(1).await;
    stage.call("POST", "/runners/m1/drain/", None).await;
    two.child
        .wait_for_line("a worker runs for an offered camera", SOON)
        .await;
    two.child.signal(Signal::SIGKILL);
    let _three = stage.manager("m3", json!({})).await;
    stage.holds("m3", 1).await;
    stage.working(1, boot_ms()).await;
    let gaps = moved(&stage, since);
    println!("gap in ms: {gaps:?}");
    // The time that the dead one had to confirm, and the way to the third.
    assert!(gaps.iter().all(|gap| *gap < GAP_MS), "{gaps:?}");
    assert_eq!(contradictions(&stage.lines()), Vec::<String>::new());
}

#[tokio::test]
async fn a_predecessor_that_dies_in_the_middle_is_followed_immediately() {
    for (start, change) in [("2", "0"), ("0", "3")] {
        let stage = Stage::start(1).await;
        let one = stage.manager("m1", slow("0", change)).await;
        stage.working(1, 0).await;
        one.ready().await;
        let mut two = stage.manager("m2", slow(start, "0")).await;
        registered(&two).await;
        let since = stage.from_now(1).await;
        stage.call("POST", "/runners/m1/drain/", None).await;
        let line = if change == "0" {
            "worker started"
        } else {
            "a worker runs for an offered camera"
        };
        two.child.wait_for_line(line, SOON).await;
        one.child.signal(Signal::SIGKILL);
        stage.holds("m2", 1).await;
        stage.working(1, boot_ms()).await;
        let gaps = moved(&stage, since);
        println!("gap in ms: {gaps:?}");
        assert_eq!(gaps.len(), 1);
        assert!(gaps[0] < GAP_MS, "{gaps:?}");
        assert_eq!(contradictions(&stage.lines()), Vec::<String>::new());
    }
}
