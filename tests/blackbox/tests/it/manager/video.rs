//! The reference worker under a manager: real video, a real broker, tokens that grow.

use leasehold_testkit::{Dir, Program, RabbitMq, port, wait};
use serde_json::{Value, json};

use super::stage::Stage;
use crate::{
    camera::{
        broker::Listener,
        world::{camera, moving, still, zone},
    },
    cli_support::SOON,
};

/// Adds a camera to the stage's site.
async fn add(stage: &Stage, mut camera: Value) {
    camera["tenant_id"] = "t".into();
    camera["site_id"] = "s".into();
    let (status, problem) = stage
        .call("POST", "/tenants/t/sites/s/cameras/", Some(camera))
        .await;
    assert_eq!(status, 201, "{problem}");
}

/// Settings of a manager whose workers are the reference worker.
fn reference(more: &Value) -> Value {
    let mut environment = json!({"PATH": std::env::var("PATH").unwrap_or_default()});
    if let (Some(into), Some(more)) = (environment.as_object_mut(), more.as_object()) {
        into.extend(more.clone());
    }
    json!({"lease_ttl_seconds": 10, "worker": {
        "command": [leasehold_testkit::Binary::leasehold_path(), "camera-worker"],
        "environment": environment}})
}

#[tokio::test]
async fn heavy_video_of_a_killed_managers_camera_is_published_by_another_with_a_larger_token() {
    let dir = Dir::new("video");
    let url = moving(&dir).await;
    let broker = RabbitMq::start().await;
    let listener = Listener::start(&broker.url(), "t.s").await;
    let stage = Stage::start(0).await;
    for name in ["cam-a", "cam-b"] {
        let mut body = camera(name, &url);
        body["zones"] = json!([zone(3, "include", true)]);
        add(&stage, body).await;
    }
    let worker = reference(&json!({"LEASEHOLD_WORKER_AMQP": broker.url()}));
    let mut one = stage.manager("m1", worker.clone()).await;
    for name in ["cam-a", "cam-b"] {
        listener.event(name, "motion_started").await;
    }
    let tokens = |name: &str| -> Vec<u64> {
        let heard = listener.heard();
        let of_camera = heard.iter().filter(|it| it.camera() == name);
        of_camera
            .filter_map(|it| it.message["token"].as_u64())
            .collect()
    };
    let first = ["cam-a", "cam-b"].map(|name| tokens(name)[0]);
    one.child.kill9_alone();
    let _two = stage.manager("m2", worker).await;
    stage.holds("m2", 2).await;
    for (name, first) in ["cam-a", "cam-b"].into_iter().zip(first) {
        wait::until(SOON, "the next manager's worker publishes it", async || {
            tokens(name).last().is_some_and(|it| *it > first)
        })
        .await;
        assert!(tokens(name).is_sorted(), "no older token came back");
    }
    for it in listener.heard() {
        assert!(it.routing_key.ends_with(&format!(".t.s.{}", it.camera())));
        assert!(it.message["lease_id"].is_string(), "{it:?}");
    }
}

#[tokio::test]
async fn workers_serve_their_metrics_on_the_ports_after_their_managers() {
    let dir = Dir::new("video");
    let stage = Stage::start(0).await;
    add(&stage, camera("cam", &still(&dir).await)).await;
    let own = loop {
        let port = port::free();
        if std::net::TcpListener::bind(("127.0.0.1", port + 1)).is_ok() {
            break port;
        }
    };
    let mut changes = reference(&Value::Null);
    changes["metrics_listen"] = format!("127.0.0.1:{own}").into();
    let _manager = stage.manager("m1", changes).await;
    for (port, name) in [
        (own, "active_leases_total"),
        (own + 1, "leasehold_worker_frames_total"),
    ] {
        wait::until(SOON, name, async || {
            let asked = reqwest::get(format!("http://127.0.0.1:{port}/metrics"));
            let Ok(answer) = asked.await else {
                return false;
            };
            answer.text().await.is_ok_and(|text| text.contains(name))
        })
        .await;
    }
    let elsewhere = format!("http://127.0.0.1:{}/healthz", own + 1);
    let status = reqwest::get(elsewhere).await.unwrap().status();
    assert_eq!(status, 404, "nothing else is served there");
}

#[tokio::test]
async fn a_still_of_each_camera_is_at_the_server_for_whoever_draws_zones() {
    let dir = Dir::new("video");
    let stage = Stage::start(0).await;
    add(&stage, camera("cam", &still(&dir).await)).await;
    let worker = reference(&Value::Null);
    let manager = stage.manager("m1", worker).await;
    let key = std::fs::read_to_string(stage.server.data().join("admin.token")).unwrap();
    let http = reqwest::Client::new();
    let path = format!("{}/api/v1/cameras/cam/picture", stage.url());
    let shown = wait::until_some(SOON, "there is a still", async || {
        let asked = http.get(&path).bearer_auth(key.trim()).send();
        asked.await.ok().filter(|answer| answer.status() == 200)
    })
    .await;
    assert_eq!(shown.headers()["content-type"], "image/png");
    assert_eq!(shown.headers()["picture-size"], "320x240");
    let bytes = shown.bytes().await.unwrap();
    std::fs::write(dir.join("still.png"), &bytes).unwrap();
    // Somebody else's decoder reads it: half as large, with the white box where the camera has it.
    Program::new("ffmpeg")
        .args(["-nostdin", "-loglevel", "error", "-i", "still.png"])
        .args(["-f", "rawvideo", "-pix_fmt", "gray", "still.raw"])
        .current_dir(dir.path())
        .run()
        .await
        .unwrap();
    let pixels = std::fs::read(dir.join("still.raw")).unwrap();
    assert_eq!(pixels.len(), 160 * 120);
    let (inside, outside) = (pixels[60 * 160 + 40], pixels[20 * 160 + 40]);
    assert!(inside > 200 && outside < 150, "{inside} and {outside}");
    // A still under another token, or of a camera that is elsewhere, is not passed on.
    let workers = manager.get("/workers").await;
    let mut all = workers["workers"].as_array().unwrap().iter();
    let id = all.find_map(|it| it["worker_id"].as_str()).unwrap();
    for (name, query, expected) in [
        ("cam", "token=999999&width=320&height=240", 409),
        ("other", "token=1&width=320&height=240", 409),
        ("cam", "width=320&height=240", 400),
    ] {
        let url = format!(
            "{}/workers/{id}/cameras/{name}/picture?{query}",
            manager.url
        );
        let answer = http.post(url).body(bytes.clone()).send().await.unwrap();
        assert_eq!(answer.status(), expected, "{name} {query}");
    }
}
