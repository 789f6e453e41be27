//! Cameras come, change and go without a restart; the worker goes gracefully, immediately, or with its
//! manager.

use std::sync::{Arc, Mutex};

use leasehold_testkit::{Dir, Program, wait};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

use crate::{
    camera::world::{Entry, Shard, Start, all_gone, below, camera, moving, set, zone},
    cli_support::SOON,
};

#[tokio::test]
async fn cameras_are_added_dropped_and_changed_without_a_restart() {
    let dir = Dir::new("video");
    let url = moving(&dir).await;
    let (first, second) = (
        Entry::new(camera("first", &url), 41),
        Entry::new(camera("second", &url), 42),
    );
    let mut shard = Shard::start(Start::reference(), &[first.clone(), second.clone()]).await;
    shard.working("2/2").await;
    shard.event("first", "motion_started").await;
    let before = below(shard.child.pid(), "ffmpeg");

    // One goes, one comes, one is left alone.
    let third = Entry::new(camera("third", &url), 43);
    assert_eq!(shard.cameras(&[second.clone(), third.clone()]).await, 202);
    // The last message of the dropped camera says where it ended.
    let stopped = shard.event("first", "stopped").await;
    assert_eq!(stopped["token"], 41);
    assert!(stopped["last_frame_at"].is_string(), "{stopped}");
    let count = shard.count("first");
    shard.event("third", "motion_started").await;
    shard.working("2/2").await;
    assert_eq!(shard.count("first"), count, "nothing after the answer");
    let after = below(shard.child.pid(), "ffmpeg");
    assert_eq!(after.iter().filter(|pid| before.contains(pid)).count(), 1);

    // A zone is edited: the stream goes on, and what moved no longer counts.
    let mut edited = second.clone();
    edited.camera["zones"] = json!([zone(1, "exclude", true)]);
    let kept = below(shard.child.pid(), "ffmpeg");
    assert_eq!(shard.cameras(&[edited.clone(), third.clone()]).await, 202);
    shard.event("second", "changed").await;
    shard.event("second", "motion_ended").await;
    assert_eq!(below(shard.child.pid(), "ffmpeg"), kept);

    // A new lease is a new token: stopped under the old one, started under the new one.
    let mut renewed = edited;
    renewed.token = 52;
    assert_eq!(shard.cameras(&[renewed, third]).await, 202);
    let stopped = shard.event("second", "stopped").await;
    assert_eq!(stopped["token"], 42);
    wait::until(SOON, "started under the new token", async || {
        let all = shard.published();
        all.iter()
            .any(|it| it.is("second", "started") && it.message["token"] == 52)
    })
    .await;

    // An older set, another's set, and none at all.
    assert_eq!(shard.post("/cameras", Some(&set(1, &[]))).await, 409);
    let mut foreign = set(99, &[]);
    foreign["shard_id"] = json!("other");
    assert_eq!(shard.post("/cameras", Some(&foreign)).await, 409);
    assert_eq!(shard.post("/cameras", Some(&json!({"a": 1}))).await, 400);
    let twice = [first.clone(), first];
    assert_eq!(shard.post("/cameras", Some(&set(99, &twice))).await, 400);
    assert_eq!(shard.post("/nothing", None).await, 404);
    shard.working("2/2").await;
}

#[tokio::test]
async fn drains_with_a_last_word_about_every_camera() {
    let dir = Dir::new("video");
    let url = moving(&dir).await;
    let entries = [
        Entry::new(camera("one", &url), 61),
        Entry::new(camera("two", &url), 62),
    ];
    let mut shard = Shard::start(Start::reference(), &entries).await;
    shard.working("2/2").await;
    let readers = below(shard.child.pid(), "ffmpeg");
    assert_eq!(readers.len(), 2);
    assert_eq!(shard.post("/drain", None).await, 202);
    let status = shard.child.wait(SOON).await;
    assert!(status.success(), "{status:?}: {}", shard.child.tail());
    all_gone(&readers).await;
    for entry in &entries {
        let all = shard.published();
        let last = all.iter().rfind(|it| it.camera() == entry.name()).unwrap();
        assert_eq!(last.message["event"], "stopped");
        assert_eq!(last.message["token"], entry.token);
        assert!(last.message["last_frame_at"].is_string(), "{last:?}");
    }
}

#[tokio::test]
async fn ends_immediately_when_ordered_to_or_when_its_manager_dies() {
    let dir = Dir::new("video");
    let url = moving(&dir).await;
    let entries = [Entry::new(camera("one", &url), 71)];
    let mut shard = Shard::start(Start::reference(), &entries).await;
    shard.working("1/1").await;
    let readers = below(shard.child.pid(), "ffmpeg");
    assert_eq!(shard.post("/terminate", None).await, 202);
    shard.child.wait(SOON).await;
    all_gone(&readers).await;

    let mut manager = Program::new("sleep").arg("600").spawn();
    let mut start = Start::reference();
    start.manager_pid = manager.pid();
    let mut shard = Shard::start(start, &entries).await;
    shard.working("1/1").await;
    let readers = below(shard.child.pid(), "ffmpeg");
    manager.kill9();
    shard.child.wait(SOON).await;
    all_gone(&readers).await;
}

#[tokio::test]
async fn a_stream_that_ends_is_begun_again_and_one_that_cannot_be_read_says_why() {
    let dir = Dir::new("video");
    let url = moving(&dir).await;
    let entries = [
        Entry::new(camera("good", &url), 81),
        Entry::new(camera("missing", "file:///nowhere/video.mp4"), 82),
    ];
    let shard = Shard::start(Start::reference(), &entries).await;
    let offline = shard.event("missing", "offline").await;
    let error = offline["error"].as_str().unwrap();
    assert!(error.contains("No such file"), "{error}");
    shard.working("1/2").await;
    assert_eq!(shard.get("/ready").await.0, 503);
    // The other one is tried again and again, and has a reader for moments.
    let reader = wait::until_some(SOON, "one reader", async || {
        match below(shard.child.pid(), "ffmpeg")[..] {
            [reader] => Some(reader),
            _ => None,
        }
    })
    .await;
    let pid = nix::unistd::Pid::from_raw(reader.cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
    shard.event("good", "offline").await;
    wait::until(SOON, "it is online a second time", async || {
        let all = shard.published();
        all.iter().filter(|it| it.is("good", "online")).count() == 2
    })
    .await;
}

/// A manager that takes heartbeats and keeps the last one.
async fn listening() -> (String, Arc<Mutex<Value>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let last = Arc::new(Mutex::new(Value::Null));
    let heard = last.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = Vec::new();
            let body = loop {
                let mut part = [0; 4096];
                let read = stream.read(&mut part).await.unwrap_or(0);
                request.extend_from_slice(&part[..read]);
                let text = String::from_utf8_lossy(&request);
                let body = text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
                match body.and_then(|body| serde_json::from_str::<Value>(&body).ok()) {
                    Some(body) => break body,
                    None if read == 0 => break Value::Null,
                    None => {}
                }
            };
            assert!(request.starts_with(b"POST /workers/w-0/heartbeat "));
            *heard.lock().unwrap() = body;
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
            let _ = stream.write_all(answer).await;
        }
    });
    (url, last)
}

#[tokio::test]
async fn reports_to_its_manager_how_each_camera_does() {
    let dir = Dir::new("video");
    let url = moving(&dir).await;
    let (manager, last) = listening().await;
    let entries = [
        Entry::new(camera("good", &url), 83),
        Entry::new(camera("bad", "file:///nowhere/video.mp4"), 84),
    ];
    let mut start = Start::reference();
    start.environment = vec![("LEASEHOLD_MANAGER_URL", manager)];
    let _shard = Shard::start(start, &entries).await;
    // Only after several attempts: one hiccup is no failure.
    let report = wait::until_some(SOON, "the bad camera counts as failed", async || {
        let report = last.lock().unwrap().clone();
        (report["cameras"]["bad"]["state"] == "failed").then_some(report)
    })
    .await;
    let bad = &report["cameras"]["bad"];
    assert!(
        bad["error"].as_str().unwrap().contains("No such file"),
        "{bad}"
    );
    let good = &report["cameras"]["good"];
    assert_eq!(
        (&good["state"], &good["token"]),
        (&json!("working"), &json!(83))
    );
    assert!(good["last_frame_unix_ms"].is_u64(), "{good}");
    assert_eq!(report["stats"], json!({"cameras": 2, "working": 1}));
}
