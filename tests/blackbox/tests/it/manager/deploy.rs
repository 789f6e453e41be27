//! Another command for the workers: the new one takes over when it is ready, and only then.

use leasehold_testkit::wait;
use serde_json::json;

use super::stage::{Stage, contradictions, longest_gap};
use crate::cli_support::{SOON, boot_ms};

#[tokio::test]
async fn a_new_command_takes_over_without_overlap() {
    let stage = Stage::start(4).await;
    let manager = stage.manager("m1", json!({"max_workers": 1})).await;
    stage.working(4, 0).await;
    let changed = boot_ms();
    let second = json!({"max_workers": 1, "worker": {"environment": {"VERSION": "2"}}});
    stage.rewrite(&manager, "m1", &second);
    wait::until(SOON, "the new worker publishes everything", async || {
        let since = stage.since(changed);
        since.len() == 4
            && since
                .values()
                .all(|lines| lines.last().is_some_and(|it| it.0["version"] == "2"))
    })
    .await;
    let gap = longest_gap(&stage.since(changed));
    println!("longest gap of a camera: {gap} ms");
    assert!(gap < 5_000, "less than draining may take: {gap} ms");
    assert_eq!(contradictions(&stage.lines()), Vec::<String>::new());
    manager.workers(1).await;
}

#[tokio::test]
async fn a_new_command_that_never_gets_ready_changes_nothing() {
    let stage = Stage::start(2).await;
    let mut manager = stage.manager("m1", json!({"max_workers": 1})).await;
    stage.working(2, 0).await;
    let pids = manager.workers(1).await;
    let broken = json!({"max_workers": 1, "worker": {"start_grace_seconds": 1,
        "environment": {"VERSION": "2", "MISBEHAVE": "never-ready"}}});
    let changed = boot_ms();
    stage.rewrite(&manager, "m1", &broken);
    manager
        .child
        .wait_for_line("did not become ready; the old one goes on", SOON)
        .await;
    stage.working(2, boot_ms()).await;
    assert_eq!(manager.worker_pids().await, pids);
    assert!(longest_gap(&stage.since(changed)) < 5_000);
    let lines = stage.lines();
    let second = lines
        .iter()
        .filter(|it| it.camera().is_some() && it.0["version"] == "2");
    assert_eq!(second.count(), 0, "it never published");
}
