//! The worker in Python: short, and right.

use std::net::TcpListener;

use leasehold_testkit::{Program, wait};
use serde_json::{Value, json};

use crate::{
    camera::world::{Entry, Shard, Start, camera, set},
    cli_support::{SOON, boot_ms},
};

const WORKER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/worker.py");

async fn start(entries: &[Entry]) -> Shard {
    let start = Start {
        program: Program::new("python3").arg(WORKER),
        manager_pid: std::process::id(),
        environment: vec![("WORKER_INTERVAL_SECONDS", "0.05".to_owned())],
    };
    Shard::start(start, entries).await
}

fn said(shard: &Shard, camera: &str) -> Vec<Value> {
    let lines = shard.child.lines().into_iter();
    lines
        .filter_map(|line| serde_json::from_str::<Value>(&line).ok())
        .filter(|message| message["camera_uuid"] == camera)
        .collect()
}

async fn grows(shard: &Shard, camera: &str) {
    let before = said(shard, camera).len();
    wait::until(SOON, &format!("more of {camera}"), async || {
        said(shard, camera).len() >= before + 3
    })
    .await;
}

#[test]
fn the_example_is_short_and_uses_the_standard_library_alone() {
    let text = std::fs::read_to_string(WORKER).unwrap();
    assert!(text.lines().count() < 150, "{}", text.lines().count());
}

#[tokio::test]
async fn the_example_in_python_follows_the_contract() {
    let mut entries = vec![
        Entry::new(camera("one", "rtsp://h/1"), 5),
        Entry::new(camera("two", "rtsp://h/2"), 6),
    ];
    let mut shard = start(&entries).await;
    shard.working("2/2").await;
    assert_eq!(shard.get("/ready").await.0, 200);
    assert!(shard.get("/metrics").await.1.contains("worker_cameras 2"));
    grows(&shard, "one").await;
    assert!(said(&shard, "one").iter().all(|it| it["token"] == 5));

    // Dropped: nothing after the answer. Added: at work.
    let gone = entries.remove(0);
    entries.push(Entry::new(camera("three", "rtsp://h/3"), 7));
    assert_eq!(shard.cameras(&entries).await, 202);
    grows(&shard, "three").await;
    let last = said(&shard, &gone.name());
    assert_eq!(last.last().unwrap()["event"], "stopped");

    // Past its deadline: silent.
    entries[0].deadline_boot_ms = boot_ms() + 300;
    shard.fence(&entries);
    wait::until(SOON, "the deadline has passed", async || {
        boot_ms() > entries[0].deadline_boot_ms
    })
    .await;
    // What was printed before the deadline has been read by now.
    grows(&shard, "three").await;
    let before = said(&shard, "two").len();
    grows(&shard, "three").await;
    assert_eq!(said(&shard, "two").len(), before);

    assert_eq!(shard.post("/cameras", Some(&set(1, &[]))).await, 409);
    assert_eq!(shard.post("/cameras", Some(&json!([1]))).await, 400);
    assert_eq!(shard.post("/drain", None).await, 202);
    let status = shard.child.wait(SOON).await;
    assert!(status.success(), "{status:?}: {}", shard.child.tail());
    assert_eq!(said(&shard, "three").last().unwrap()["event"], "stopped");
}

/// Like the camera worker: on the port that its manager gives it, as soon as that is free.
#[tokio::test]
async fn the_example_in_python_serves_its_metrics_on_the_port_that_it_is_given() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let start = Start {
        program: Program::new("python3").arg(WORKER),
        manager_pid: std::process::id(),
        environment: vec![("LEASEHOLD_WORKER_METRICS_PORT", address.port().to_string())],
    };
    let entries = [Entry::new(camera("one", "rtsp://h/1"), 5)];
    let shard = Shard::start(start, &entries).await;
    shard.working("1/1").await;
    drop(taken);
    let ask = async |path: &str| {
        let answer = reqwest::get(format!("http://{address}{path}")).await.ok()?;
        Some((answer.status().as_u16(), answer.text().await.ok()?))
    };
    wait::until(SOON, "the metrics are there", async || {
        let answer = ask("/metrics").await;
        answer.is_some_and(|(status, text)| status == 200 && text.contains("worker_cameras 1"))
    })
    .await;
    for other in ["/healthz", "/ready"] {
        assert_eq!(
            ask(other).await.map(|(status, _)| status),
            Some(404),
            "{other}"
        );
    }
    let post = reqwest::Client::new().post(format!("http://{address}/drain"));
    assert_eq!(post.send().await.unwrap().status().as_u16(), 404);
    shard.working("1/1").await;
}

#[tokio::test]
async fn the_example_in_python_ends_with_its_manager() {
    let mut manager = Program::new("sleep").arg("600").spawn();
    let start = Start {
        program: Program::new("python3").arg(WORKER),
        manager_pid: manager.pid(),
        environment: Vec::new(),
    };
    let mut shard = Shard::start(start, &[]).await;
    manager.kill9();
    shard.child.wait(SOON).await;
}
