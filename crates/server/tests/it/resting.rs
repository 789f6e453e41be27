//! Cameras that are with nobody on purpose: switched off, or parked because they fail everywhere.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use serde_json::{Value, json};

use crate::support::{self, ADMIN, Running, start};

const CAMERAS: &str = "/api/v1/tenants/t/sites/s/cameras/";

async fn beat(server: &Running, runner: &str, status: Value) -> Value {
    let path = format!("/api/v1/runners/{runner}/heartbeat/");
    let body = json!({"camera_status": status});
    let (code, answer) = server.call(ADMIN, "PUT", &path, body).await;
    assert_eq!(code, 200, "{answer}");
    answer
}

async fn get(server: &Running, path: &str) -> Value {
    let (code, answer) = server.call(ADMIN, "GET", path, Value::Null).await;
    assert_eq!(code, 200, "{answer}");
    answer
}

async fn change(server: &Running, camera: &str, change: Value) -> Value {
    let path = format!("{CAMERAS}{camera}/");
    let (code, answer) = server.call(ADMIN, "PUT", &path, change).await;
    assert_eq!(code, 200, "{answer}");
    answer
}

async fn release(server: &Running, lease: &Value) {
    let path = format!(
        "/api/v1/leases/{}/release/",
        lease["lease_id"].as_str().unwrap()
    );
    let (code, answer) = server.call(ADMIN, "DELETE", &path, Value::Null).await;
    assert_eq!(code, 200, "{answer}");
}

fn give_up(answer: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let items = answer["give_up"].as_array().unwrap().iter();
    items
        .map(|it| (text(&it["camera_uuid"]), text(&it["reason"])))
        .collect()
}

async fn a_camera_that_is_switched_off_is_given_up_and_kept_in_the_configuration() {
    let server = start().await;
    server.runner("t", "s", "run-1", 8).await;
    server.camera("t", "s", "cam-1").await;
    server.camera("t", "s", "cam-2").await;
    let (code, lease) = server.lease_camera("cam-1", "run-1").await;
    assert_eq!(code, 200, "{lease}");
    let off = change(&server, "cam-1", json!({"enabled": false})).await;
    assert_eq!(off["enabled"], false);
    let answer = beat(&server, "run-1", json!({})).await;
    assert_eq!(
        give_up(&answer),
        [("cam-1".to_owned(), "disabled".to_owned())]
    );
    assert_eq!(answer["take"][0]["camera_uuid"], "cam-2");
    release(&server, &lease).await;

    // With nobody, where it should be: neither pending, nor offered, nor granted.
    let answer = beat(&server, "run-1", json!({})).await;
    assert_eq!(answer["give_up"], json!([]));
    assert_eq!(answer["take"].as_array().unwrap().len(), 1);
    let plan = get(&server, "/api/v1/tenants/t/sites/s/plan/").await;
    assert_eq!(
        (&plan["resting"], plan["moves"].as_array().unwrap().len()),
        (&json!(1), 1)
    );
    let free = get(&server, "/api/v1/cameras/available/?tenant_id=t&site_id=s").await;
    assert_eq!(free["cameras"], json!(["cam-2"]));
    let (code, problem) = server.lease_camera("cam-1", "run-1").await;
    assert_eq!(
        (code.as_u16(), &problem["code"]),
        (409, &json!("CAMERA_DISABLED"))
    );
    assert_eq!(
        get(&server, "/api/v1/cameras/cam-1/explain/").await["reason"],
        "disabled"
    );

    change(&server, "cam-1", json!({"enabled": true})).await;
    let answer = beat(&server, "run-1", json!({})).await;
    assert_eq!(answer["take"].as_array().unwrap().len(), 2);
}

async fn a_camera_that_fails_goes_round_and_is_parked_when_it_failed_everywhere() {
    parked().await;
}

/// A server with a camera that is parked because it failed on both runners.
async fn parked() -> Running {
    let server = start().await;
    server.camera("t", "s", "bad").await;
    for runner in ["run-1", "run-2"] {
        server.runner("t", "s", runner, 8).await;
    }
    let failed = json!({"bad": {"state": "failed", "error": "no route to host"}});
    let (_, lease) = server.lease_camera("bad", "run-1").await;
    // A report about a camera that the runner does not hold counts for nothing.
    beat(&server, "run-2", failed.clone()).await;
    let answer = beat(&server, "run-1", failed.clone()).await;
    assert_eq!(give_up(&answer), [("bad".to_owned(), "failing".to_owned())]);
    assert_eq!(answer["give_up"][0]["to"], "run-2");
    release(&server, &lease).await;
    let answer = beat(&server, "run-1", json!({})).await;
    assert_eq!(answer["take"], json!([]), "it failed here");
    let answer = beat(&server, "run-2", json!({})).await;
    assert_eq!(answer["take"][0]["camera_uuid"], "bad");
    assert!(
        get(&server, "/api/v1/cameras/bad/")
            .await
            .get("parked")
            .is_none()
    );

    let (_, lease) = server.lease_camera("bad", "run-2").await;
    let answer = beat(&server, "run-2", failed).await;
    assert_eq!(give_up(&answer), [("bad".to_owned(), "parked".to_owned())]);
    release(&server, &lease).await;
    let shown = get(&server, "/api/v1/cameras/bad/").await;
    assert_eq!(shown["parked"]["reason"], "no route to host");
    assert_eq!(
        get(&server, CAMERAS).await["cameras"][0]["parked"]["attempts"],
        1
    );
    assert_eq!(
        get(&server, "/api/v1/cameras/bad/explain/").await["reason"],
        "parked"
    );
    let free = get(&server, "/api/v1/cameras/available/?tenant_id=t&site_id=s").await;
    assert_eq!(free["cameras"], json!([]));
    for runner in ["run-1", "run-2"] {
        let answer = beat(&server, runner, json!({})).await;
        assert_eq!(answer["take"], json!([]), "{runner}");
    }
    server
}

#[tokio::test]
async fn a_parked_camera_is_tried_again_when_its_pause_is_over() {
    let server = parked().await;
    let failed = json!({"bad": {"state": "failed", "error": "no route to host"}});
    server.clock.advance(30_000);
    let mut taken = Vec::new();
    for runner in ["run-1", "run-2"] {
        if beat(&server, runner, json!({})).await["take"] != json!([]) {
            taken.push(runner);
        }
    }
    let [runner] = taken[..] else {
        panic!("one of them: {taken:?}");
    };
    server.lease_camera("bad", runner).await;
    let works = json!({"bad": {"state": "working"}});
    let answer = beat(&server, runner, works).await;
    assert_eq!(answer["give_up"], json!([]));
    // Its troubles are over: the next failure is the first again.
    beat(&server, runner, failed).await;
    let shown = get(&server, "/api/v1/cameras/bad/").await;
    assert!(shown.get("parked").is_none(), "{shown}");
}

async fn a_change_lets_a_parked_camera_be_tried_at_once() {
    let server = start().await;
    server.camera("t", "s", "bad").await;
    server.runner("t", "s", "run-1", 8).await;
    let (_, lease) = server.lease_camera("bad", "run-1").await;
    beat(&server, "run-1", json!({"bad": {"state": "failed"}})).await;
    release(&server, &lease).await;
    assert_eq!(beat(&server, "run-1", json!({})).await["take"], json!([]));
    change(
        &server,
        "bad",
        json!({"rtsp_url": "rtsp://elsewhere/stream"}),
    )
    .await;
    let answer = beat(&server, "run-1", json!({})).await;
    assert_eq!(answer["take"][0]["camera_uuid"], "bad");
    // One that is removed leaves nothing behind.
    let path = format!("{CAMERAS}bad/");
    let (code, _) = server.call(ADMIN, "DELETE", &path, Value::Null).await;
    assert_eq!(code, 200);
    server.camera("t", "s", "bad").await;
    assert!(
        get(&server, "/api/v1/cameras/bad/")
            .await
            .get("parked")
            .is_none()
    );
}

async fn figure(server: &Running, line: &str) {
    leasehold_testkit::wait::until(support::LONG, line, async || {
        let (_, text) = server.call(ADMIN, "GET", "/metrics", Value::Null).await;
        text.as_str()
            .is_some_and(|text| text.lines().any(|it| it == line))
    })
    .await;
}

#[tokio::test]
async fn cameras_that_nobody_has_are_counted_by_reason_and_by_time() {
    let server = start().await;
    server.camera("t", "s", "cam-1").await;
    server.camera("t", "s", "cam-2").await;
    change(&server, "cam-2", json!({"enabled": false})).await;
    server.clock.advance(10_000);
    figure(&server, "leasehold_cameras_unowned{reason=\"no_runner\"} 1").await;
    figure(
        &server,
        "leasehold_cameras_unowned_long{reason=\"no_runner\"} 0",
    )
    .await;
    server.clock.advance(60_000);
    figure(
        &server,
        "leasehold_cameras_unowned_long{reason=\"no_runner\"} 1",
    )
    .await;
    server.runner("t", "s", "run-1", 1).await;
    server.clock.advance(10_000);
    figure(&server, "leasehold_cameras_unowned{reason=\"pending\"} 1").await;
    figure(&server, "leasehold_cameras_unowned{reason=\"no_runner\"} 0").await;
    server.lease_camera("cam-1", "run-1").await;
    change(&server, "cam-2", json!({"enabled": true})).await;
    server.clock.advance(10_000);
    figure(&server, "leasehold_cameras_unowned{reason=\"no_room\"} 1").await;
    figure(&server, "leasehold_cameras_unowned{reason=\"pending\"} 0").await;
}

#[tokio::test]
async fn a_runner_that_has_been_away_for_long_is_forgotten() {
    let mut options = support::options();
    options.runners.forget_after = leasehold_api::config::Period::from_millis(300_000);
    let server = support::start_with(options).await;
    server.camera("t", "s", "cam-1").await;
    server.runner("t", "s", "gone", 4).await;
    // Its presence lapses, and the next look notices.
    server.clock.advance(70_000);
    figure(&server, "leasehold_cameras_unowned{reason=\"no_runner\"} 1").await;
    assert_eq!(
        get(&server, "/api/v1/runners/gone/").await["status"],
        "inactive"
    );
    server.runner("t", "s", "here", 4).await;
    for _ in 0..10 {
        server.clock.advance(30_000);
        beat(&server, "here", json!({})).await;
        figure(&server, "leasehold_cameras_unowned{reason=\"pending\"} 1").await;
    }
    leasehold_testkit::wait::until(support::LONG, "it is forgotten", async || {
        server.clock.advance(10_000);
        let path = "/api/v1/runners/gone/";
        server.call(ADMIN, "GET", path, Value::Null).await.0 == 404
    })
    .await;
    assert_eq!(
        get(&server, "/api/v1/runners/here/").await["status"],
        "active"
    );
}

on_every_backend!(
    a_camera_that_is_switched_off_is_given_up_and_kept_in_the_configuration,
    a_camera_that_fails_goes_round_and_is_parked_when_it_failed_everywhere,
    a_change_lets_a_parked_camera_be_tried_at_once,
);
