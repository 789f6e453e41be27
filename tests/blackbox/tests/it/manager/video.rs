//! The reference worker under a manager: real video, a real broker, tokens that grow.

use leasehold_testkit::{Dir, RabbitMq, wait};
use serde_json::json;

use super::stage::Stage;
use crate::{
    camera::{
        broker::Listener,
        world::{camera, moving, zone},
    },
    cli_support::SOON,
};

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
        body["tenant_id"] = "t".into();
        body["site_id"] = "s".into();
        let (status, problem) = stage
            .call("POST", "/tenants/t/sites/s/cameras/", Some(body))
            .await;
        assert_eq!(status, 201, "{problem}");
    }
    let worker = json!({"lease_ttl_seconds": 10, "worker": {
        "command": [leasehold_testkit::Binary::leasehold_path(), "camera-worker"],
        "environment": {"LEASEHOLD_WORKER_AMQP": broker.url(), "PATH": std::env::var("PATH").unwrap_or_default()}}});
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
