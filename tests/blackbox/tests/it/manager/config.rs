//! The manager's file: checked at the start, read again while it runs.

use leasehold_testkit::wait;
use nix::sys::signal::Signal;
use serde_json::json;

use super::stage::Stage;
use crate::cli_support::{SOON, boot_ms, run};

#[tokio::test]
async fn a_wrong_file_is_refused_with_what_was_meant() {
    let stage = Stage::start(3).await;
    let good = stage.settings("m1", 1, &json!({}));
    let check = async |text: &str, more: &[&str], env: &[(&str, String)]| {
        let file = stage.dir.write("check.yaml", text).unwrap();
        let file = file.display().to_string();
        let mut arguments = vec!["manager", "--config", &file];
        arguments.extend(more);
        run(&arguments, env).await
    };
    let ran = check(&good.to_string(), &["--check"], &[]).await;
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let ran = check("max_worker: 3\n", &["--check"], &[]).await;
    assert_eq!(ran.code, 78);
    assert!(
        ran.stderr.contains("did you mean `max_workers`?"),
        "{}",
        ran.stderr
    );
    let ran = check("tenant_id: t\nsite_id: s\n", &[], &[]).await;
    assert_eq!(ran.code, 78);
    assert!(ran.stderr.contains("control_plane_url"), "{}", ran.stderr);
    let misspelt = [("LEASEHOLD_MANAGER_MAX_WORKER", "3".to_owned())];
    let ran = check(&good.to_string(), &["--check"], &misspelt).await;
    assert_eq!(ran.code, 78);
    assert!(
        ran.stderr.contains("LEASEHOLD_MANAGER_MAX_WORKERS"),
        "{}",
        ran.stderr
    );
    let ran = check(&good.to_string(), &["--dry-run"], &[]).await;
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(
        ran.stdout.contains("3 cameras, 3 free, room for 64"),
        "{}",
        ran.stdout
    );
    assert!(ran.stdout.contains("worker 0  cam-000"), "{}", ran.stdout);
    assert!(stage.owners().await.is_empty(), "nothing was acquired");
}

#[tokio::test]
async fn a_wrong_file_leaves_the_running_one_and_a_right_one_is_applied() {
    let stage = Stage::start(4).await;
    let mut manager = stage
        .manager("m1", json!({"max_workers": 1, "max_cameras_per_worker": 2}))
        .await;
    stage.holds("m1", 2).await;
    stage.working(2, 0).await;
    let pids = manager.workers(1).await;
    stage.rewrite(&manager, "m1", &json!({"max_workers": 0}));
    manager
        .child
        .wait_for_line("the running one stays", SOON)
        .await;
    stage.rewrite(
        &manager,
        "m1",
        &json!({"max_workers": 2, "max_cameras_per_worker": 2}),
    );
    let line = manager
        .child
        .wait_for_line("configuration changed", SOON)
        .await;
    assert!(line.contains("max_workers: 1 -> 2"), "{line}");
    stage.holds("m1", 4).await;
    stage.working(4, boot_ms()).await;
    let after = manager.workers(2).await;
    assert!(
        after.contains(&pids[0]),
        "the first worker went on: {pids:?} {after:?}"
    );
    // Fewer workers: what has no room goes back.
    stage.rewrite(
        &manager,
        "m1",
        &json!({"max_workers": 1, "max_cameras_per_worker": 2}),
    );
    stage.holds("m1", 2).await;
    manager.workers(1).await;
}

/// The key that it began with is revoked, and the one that is put into its file is used from then on.
#[tokio::test]
async fn another_key_in_the_key_file_is_used_without_a_restart() {
    let stage = Stage::start(1).await;
    let make = async |name: &str| {
        let scopes = [
            "runners:read",
            "runners:write",
            "leases:read",
            "leases:write",
        ];
        let mut arguments = vec!["token", "create", "--name", name];
        for scope in scopes.into_iter().chain(["credentials:read"]) {
            arguments.extend(["--scope", scope]);
        }
        let made = stage.server.run(&arguments).await;
        assert_eq!(made.code, 0, "{}", made.stderr);
        made.stdout
    };
    let file = stage.dir.join("m1.key");
    std::fs::write(&file, make("first").await).expect("the folder is ours");
    let changes =
        json!({"api_key_file": file, "lease_ttl_seconds": 120, "heartbeat_interval_seconds": 1});
    let mut manager = stage.manager("m1", changes).await;
    stage.working(1, 0).await;
    manager.ready().await;
    let pids = manager.workers(1).await;
    let token = stage.since(0)["cam-000"][0].token();

    let revoked = stage.server.run(&["token", "revoke", "first"]).await;
    assert_eq!(revoked.code, 0, "{}", revoked.stderr);
    manager.child.wait_for_line("heartbeat refused", SOON).await;
    let fresh = stage.dir.join("fresh.key");
    std::fs::write(&fresh, make("second").await).expect("the folder is ours");
    std::fs::rename(fresh, &file).expect("the folder is ours");
    manager.child.wait_for_line("new client", SOON).await;

    // A camera that is added is learnt of, and leased, with the new key.
    stage.add_camera(1).await;
    stage.working(2, boot_ms()).await;
    wait::until(SOON, "the stream is up again", async || {
        manager.get("/healthz").await["control_plane"]["streaming"] == true
    })
    .await;
    assert!(
        manager.worker_pids().await.contains(&pids[0]),
        "same worker"
    );
    let same = stage.since(0)["cam-000"]
        .iter()
        .all(|it| it.token() == token);
    assert!(same, "the lease was kept throughout");
    // An empty file is one that somebody is writing.
    std::fs::write(&file, "").expect("the folder is ours");
    manager
        .child
        .wait_for_line("the running one stays", SOON)
        .await;
    stage.working(2, boot_ms()).await;
}

/// And SIGHUP reads the file again also when nothing is new in it.
#[tokio::test]
async fn another_address_of_the_control_plane_is_used_without_a_restart() {
    let stage = Stage::start(1).await;
    let changes = json!({"lease_ttl_seconds": 60});
    let mut manager = stage.manager("m1", changes).await;
    stage.working(1, 0).await;
    let pids = manager.workers(1).await;
    let token = stage.since(0)["cam-000"][0].token();
    let proxy = leasehold_testkit::Proxy::start(stage.server.address).await;
    let url = format!("http://{}", proxy.addr());
    let changes = json!({"lease_ttl_seconds": 60, "control_plane_url": url});
    stage.rewrite(&manager, "m1", &changes);
    let line = manager
        .child
        .wait_for_line("configuration changed", SOON)
        .await;
    assert!(line.contains("new client"), "{line}");
    // A camera that is added is learnt of, and leased, by the new way.
    stage.add_camera(1).await;
    stage.working(2, boot_ms()).await;
    assert!(proxy.accepted() > 0, "it goes by the new address");
    assert!(manager.worker_pids().await.contains(&pids[0]));
    let lines = stage.since(0);
    let same = lines["cam-000"].iter().all(|it| it.token() == token);
    assert!(same, "the first camera was not touched");
    manager.child.signal(Signal::SIGHUP);
    manager
        .child
        .wait_for_line("read again: nothing changed", SOON)
        .await;
}
