//! Orders and signals.

use nix::sys::signal::Signal;
use serde_json::json;

use super::stage::{Stage, is_alive};
use crate::cli_support::{SOON, boot_ms};

#[tokio::test]
async fn sigterm_drains_releases_and_deregisters() {
    let stage = Stage::start(4).await;
    let mut manager = stage
        .manager(
            "m1",
            json!({"max_workers": 2, "max_cameras_per_worker": 2, "lease_ttl_seconds": 60}),
        )
        .await;
    stage.working(4, 0).await;
    manager.ready().await;
    let pids = manager.workers(2).await;
    manager.child.signal(Signal::SIGTERM);
    assert!(manager.child.wait(SOON).await.success());
    assert!(!pids.iter().any(|&pid| is_alive(pid)));
    let drained = stage
        .lines()
        .iter()
        .filter(|it| it.0["drained"] == true)
        .count();
    assert_eq!(drained, 2, "each worker finished what it had");
    assert!(stage.owners().await.is_empty(), "long before the ttl");
    let (_, runners) = stage.call("GET", "/runners/", None).await;
    assert_eq!(runners["runners"], json!([]), "{}", manager.child.tail());
    let left: Vec<_> = std::fs::read_dir(&manager.state_dir)
        .unwrap()
        .map(|it| it.unwrap().file_name())
        .collect();
    assert_eq!(
        left,
        ["cache.json"],
        "no file with a login is left of a worker"
    );
}

#[tokio::test]
async fn a_second_sigterm_does_not_wait_for_a_stubborn_worker() {
    let stage = Stage::start(1).await;
    let stubborn =
        json!({"worker": {"drain_grace_seconds": 60, "environment": {"MISBEHAVE": "stubborn"}}});
    let mut manager = stage.manager("m1", stubborn).await;
    manager.ready().await;
    let pids = manager.workers(1).await;
    manager.child.signal(Signal::SIGTERM);
    manager.child.wait_for_line("workers drain", SOON).await;
    assert!(is_alive(pids[0]), "it is left to finish");
    let again = boot_ms();
    manager.child.signal(Signal::SIGTERM);
    manager.child.wait(SOON).await;
    assert!(boot_ms() - again < 30_000);
    assert!(!is_alive(pids[0]));
    assert!(stage.owners().await.is_empty());
}
