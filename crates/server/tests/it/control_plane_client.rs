//! The control plane's client against this server, against one that knows only the document's
//! endpoints, and against nobody.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::{process::Stdio, sync::Arc, time::Duration};

use leasehold_api::{AcquireRequest, Code, RegisterRequest, RunnerHeartbeatRequest};
use leasehold_client::{ControlPlaneClient, Error, Options, Outcome};
use leasehold_clock::System;
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::support::{ADMIN, start};

fn client(url: &str) -> ControlPlaneClient {
    let mut options = Options::new(url).token(ADMIN);
    // Room for a busy machine; the default of a second is for production.
    options.limit = Duration::from_secs(5);
    ControlPlaneClient::new(options, Arc::new(System)).unwrap()
}

fn registration() -> RegisterRequest {
    RegisterRequest {
        runner_id: "r".into(),
        tenant_id: "t".into(),
        site_id: "s".into(),
        deployment_group: "production".into(),
        deployment_version: "v1".into(),
        host: "h".into(),
        port: 8080,
        incarnation: Some("one".into()),
        ..RegisterRequest::default()
    }
}

fn asked(camera: &str, runner: &str) -> AcquireRequest {
    AcquireRequest {
        camera_uuid: Some(camera.into()),
        runner_id: Some(runner.into()),
        shard_id: Some("shard-1".into()),
        tenant_id: Some("t".into()),
        site_id: Some("s".into()),
        ..AcquireRequest::default()
    }
}

/// The life of a runner, the same against every control plane.
async fn live(client: &ControlPlaneClient) {
    let runner = client.register_runner(&registration()).await;
    assert_eq!(runner.yes().unwrap().status, "active");
    let cameras = client.cameras("t", "s").await.yes().unwrap();
    assert_eq!(cameras.len(), 2);
    assert!(client.zones("t", "s").await.yes().unwrap().is_empty());
    let version = client.version("t", "s").await.yes().unwrap();
    assert!(!version.config_version.is_empty());
    let free = client.available_cameras("t", "s").await.yes().unwrap();
    assert_eq!(free, ["cam-1", "cam-2"]);

    let mut request = asked("cam-1", "r");
    request.incarnation = Some("one".into());
    let one = client.acquire(&request).await.yes().unwrap();
    let two = client.acquire(&asked("cam-2", "r")).await.yes().unwrap();
    assert!(client.notify_camera_assigned(&one).await.yes().is_some());
    let free = client.available_cameras("t", "s").await.yes().unwrap();
    assert!(free.is_empty(), "{free:?}");

    client.release(&two.lease_id).await.yes().unwrap();
    client.release(&two.lease_id).await.yes().unwrap();
    assert!(client.notify_camera_released(&two).await.yes().is_some());
    let report = RunnerHeartbeatRequest::default();
    let reported = client
        .heartbeat("r", &report, &[one.clone(), two.clone()])
        .await
        .yes()
        .unwrap();
    let kept: Vec<_> = reported.leases.iter().map(|it| &it.lease_id).collect();
    let lost: Vec<_> = reported.lost.iter().map(|it| &it.lease_id).collect();
    assert_eq!((kept, lost), (vec![&one.lease_id], vec![&two.lease_id]));
}

#[tokio::test]
async fn a_runner_lives_with_this_server() {
    let server = start().await;
    server.camera("t", "s", "cam-1").await;
    server.camera("t", "s", "cam-2").await;
    let client = client(&server.url);
    live(&client).await;
    assert!(!client.is_plain());
    // A second process with the same name is refused, for certain.
    let mut other = registration();
    other.incarnation = Some("two".into());
    match client.register_runner(&other).await {
        Outcome::No(error) => assert_eq!(error.code(), Some(Code::RunnerAlreadyRegistered)),
        outcome => panic!("{outcome:?}"),
    }
    assert_eq!(client.runner("r").await.yes().unwrap().capacity, 16);
    assert_eq!(client.runner_leases("r").await.yes().unwrap().len(), 1);
    let removed = client.remove_runner("r").await.yes().unwrap();
    assert_eq!(removed.leases_released, 1);
}

#[tokio::test]
async fn a_runner_lives_with_a_server_that_knows_only_the_document() {
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/it/support/plain_control_plane.py"
    );
    let mut python = tokio::process::Command::new("python3")
        .arg(script)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut port = String::new();
    BufReader::new(python.stdout.take().unwrap())
        .read_line(&mut port)
        .await
        .unwrap();
    let client = client(&format!("http://127.0.0.1:{}", port.trim()));
    live(&client).await;
    assert!(client.is_plain());
    match client.acquire(&asked("cam-1", "other")).await {
        Outcome::No(error) => assert_eq!(error.code(), Some(Code::LeaseAlreadyHeld)),
        outcome => panic!("{outcome:?}"),
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unknown_and_soon_left_alone() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let client = client(&format!("http://{address}"));
    for attempt in 0..8 {
        match client.acquire(&asked("cam-1", "r")).await {
            Outcome::Unknown(Error::Unavailable(why)) => {
                let open = why.contains("several times in a row");
                assert_eq!(open, attempt >= 5, "{attempt}: {why}");
            }
            outcome => panic!("{outcome:?}"),
        }
    }
}
