//! Other control planes: the database itself, and a server that knows only the document's endpoints.

use std::{net::SocketAddr, path::Path};

use leasehold_testkit::{Child, Postgres, Program, Proxy, wait};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::stage::{Line, Stage, contradictions};
use crate::cli_support::{SOON, boot_ms};

#[tokio::test]
async fn a_manager_works_on_postgres_directly() {
    let postgres = Postgres::start().await;
    let url = format!("postgres://postgres@{}/postgres", postgres.addr());
    let stage = Stage::start_with(3, &["--store", &url]).await;
    let direct = json!({"control_plane_url": null, "api_key_file": null, "database_url": url});
    let mut manager = stage.manager("m1", direct).await;
    stage.working(3, 0).await;
    stage.holds("m1", 3).await;
    assert_eq!(contradictions(&stage.lines()), Vec::<String>::new());
    manager.child.signal(Signal::SIGTERM);
    assert!(manager.child.wait(SOON).await.success());
    assert!(stage.owners().await.is_empty());
}

/// A server that knows only the document's endpoints, with its port. It prints every request.
async fn plain_control_plane() -> (Child, u16) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../crates/server/tests/it/support/plain_control_plane.py");
    let plain = Program::new("python3").arg(script).arg("--record").spawn();
    let port = wait::until_some(SOON, "it prints its port", async || {
        plain.lines().first()?.trim().parse::<u16>().ok()
    })
    .await;
    (plain, port)
}

/// Such a server assigns nothing: a manager with room takes what it sees, and would do so with its first call.
#[tokio::test]
async fn after_an_outage_everything_held_is_validated_before_anything_new_is_taken() {
    let stage = Stage::start(0).await;
    let (mut plain, port) = plain_control_plane().await;
    let proxy = Proxy::start(SocketAddr::from(([127, 0, 0, 1], port))).await;
    let changes = |cameras: usize| {
        json!({"control_plane_url": format!("http://{}", proxy.addr()), "on_outage": "continue",
            "outage_grace_seconds": 300, "max_workers": 1, "max_cameras_per_worker": cameras})
    };
    let mut manager = stage.manager("m1", changes(1)).await;
    stage.working(1, 0).await;
    proxy.cut();
    wait::until(SOON, "it notices", async || {
        manager.get("/healthz").await["status"] == "degraded"
    })
    .await;
    stage.rewrite(&manager, "m1", &changes(2));
    manager
        .child
        .wait_for_line("max_cameras_per_worker: 1 -> 2", SOON)
        .await;
    let before = plain.lines().len();
    proxy.pass();
    stage.working(2, 0).await;
    let lines = plain.lines();
    let first = |what: &str| {
        let mut asked = lines[before..].iter();
        asked.position(|line| line.contains(what)).expect(what)
    };
    let (validated, taken) = (
        first("PUT /runners/m1/heartbeat/"),
        first("POST /leases/acquire/"),
    );
    assert!(validated < taken, "{:?}", &lines[before..]);
    plain.kill9();
}

#[tokio::test]
async fn a_manager_works_with_a_server_that_knows_only_the_documents_endpoints() {
    let stage = Stage::start(0).await;
    let (mut plain, port) = plain_control_plane().await;
    let url = format!("http://127.0.0.1:{port}");
    let mut manager = stage.manager("m1", json!({"control_plane_url": url})).await;
    stage.working(2, 0).await;
    // Longer than the ttl that was asked for: renewed lease by lease.
    stage.working(2, boot_ms() + 4_000).await;
    assert_eq!(
        manager.get("/healthz").await["control_plane"]["plain"],
        true
    );
    let tokens: std::collections::BTreeSet<u64> =
        stage.since(0).values().flatten().map(Line::token).collect();
    assert!(!tokens.contains(&0), "fenced all the same: {tokens:?}");
    manager.child.signal(Signal::SIGTERM);
    assert!(manager.child.wait(SOON).await.success());
    let http = reqwest::Client::new();
    for camera in ["cam-1", "cam-2"] {
        let lease = http
            .get(format!("{url}/api/v1/leases/camera/{camera}/"))
            .send()
            .await
            .unwrap();
        assert_eq!(lease.status().as_u16(), 404, "{camera} was released");
        let _: Value = lease.json().await.unwrap_or_default();
    }
    plain.kill9();
}
