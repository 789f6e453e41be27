//! Cameras, zones and runners over HTTP.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{self, ADMIN, READER, Running, TENANT_A, start};

const CAMERAS: &str = "/api/v1/tenants/t/sites/s/cameras/";

async fn get(server: &Running, path: &str) -> Value {
    let (status, body) = server.call(ADMIN, "GET", path, Value::Null).await;
    assert_eq!(status, 200, "{path}: {body}");
    body
}

fn names(list: &Value, field: &str) -> Vec<String> {
    let items = list.as_array().cloned().unwrap_or_default();
    items
        .iter()
        .map(|it| it[field].as_str().unwrap_or_default().to_owned())
        .collect()
}

async fn a_camera_that_is_removed_while_it_is_acquired_keeps_no_lease() {
    let server = start().await;
    server.runner("t", "s", "run-1", 256).await;
    for n in 0..60 {
        let name = format!("cam-{n}");
        server.camera("t", "s", &name).await;
        let path = format!("{CAMERAS}{name}/");
        let (_, (removed, answer)) = tokio::join!(
            server.lease_camera(&name, "run-1"),
            server.call(ADMIN, "DELETE", &path, Value::Null)
        );
        assert_eq!(removed, 200, "{answer}");
    }
    let left = get(&server, "/api/v1/leases/runner/run-1/").await;
    assert_eq!(left, json!([]));
}

async fn a_camera_lives_with_all_its_fields_and_defaults() {
    let server = start().await;
    let made = server.camera("t", "s", "cam-1").await;
    assert_eq!(made["min_score"], 0.3);
    assert_eq!(made["motion_gating"]["min_area_px"], 1500);
    assert_eq!(made["zone_test"], "center");
    assert_eq!(made["config_version"].as_str().unwrap().len(), 64);
    let again = json!({"camera_uuid": "cam-1", "rtsp_url": "rtsp://x/y"});
    let (status, problem) = server.call(ADMIN, "POST", CAMERAS, again).await;
    assert_eq!(
        (status.as_u16(), &problem["code"]),
        (409, &json!("ALREADY_EXISTS"))
    );
    assert_eq!(get(&server, "/api/v1/cameras/cam-1/").await, made);
    let change = json!({"motion_gating": {"downscale": 0.25}, "zones": [
        {"zone_id": 1, "name": "drive", "kind": "include", "polygon": [[0, 0], [9, 0], [9, 9]]}]});
    let path = format!("{CAMERAS}cam-1/");
    let (status, changed) = server.call(ADMIN, "PUT", &path, change).await;
    assert_eq!(status, 200, "{changed}");
    assert_eq!(changed["motion_gating"]["downscale"], 0.25);
    assert_eq!(changed["motion_gating"]["min_area_px"], 1500);
    assert_ne!(changed["config_version"], made["config_version"]);
    assert_ne!(changed["zone_version"], made["zone_version"]);
    let (status, _) = server.call(ADMIN, "DELETE", &path, Value::Null).await;
    assert_eq!(status, 200);
    for gone in [path.as_str(), "/api/v1/cameras/cam-1/"] {
        let (status, problem) = server.call(ADMIN, "GET", gone, Value::Null).await;
        assert_eq!(
            (status.as_u16(), &problem["code"]),
            (404, &json!("CAMERA_NOT_FOUND"))
        );
    }
}

async fn every_wrong_field_of_a_camera_is_named_and_nothing_is_kept() {
    let server = start().await;
    for (body, field) in [
        (json!({"rtsp_url": "rtsp://x"}), "camera_uuid"),
        (
            json!({"camera_uuid": "a b", "rtsp_url": "rtsp://x"}),
            "camera_uuid",
        ),
        (
            json!({"camera_uuid": "a", "rtsp_url": "ftp://x"}),
            "rtsp_url",
        ),
        (
            json!({"camera_uuid": "a", "rtsp_url": "rtsp://x", "min_score": 2}),
            "min_score",
        ),
        (
            json!({"camera_uuid": "a", "rtsp_url": "rtsp://x", "zone_test": "edge"}),
            "zone_test",
        ),
        (
            json!({"camera_uuid": "a", "rtsp_url": "rtsp://x", "tenant_id": "other"}),
            "tenant_id",
        ),
        (
            json!({"camera_uuid": "a", "rtsp_url": "rtsp://x", "colour": 1}),
            "colour",
        ),
        (
            json!({"camera_uuid": "a", "rtsp_url": "rtsp://x", "zones": [
            {"zone_id": 0, "name": "n", "kind": "include", "polygon": [[0, 0], [1, 0], [1, 1]]}]}),
            "zones[0].zone_id",
        ),
    ] {
        let (status, problem) = server.call(ADMIN, "POST", CAMERAS, body.clone()).await;
        assert_eq!(status, 400, "{body}");
        assert_eq!(problem["errors"][0]["field"], field, "{problem}");
    }
    assert_eq!(get(&server, CAMERAS).await["cameras"], json!([]));
}

async fn credentials_are_shown_only_with_their_own_scope() {
    let mut options = support::options();
    options.tokens.push(
        serde_json::from_value(
            json!({"token": "keeper", "scopes": ["runners:read", "credentials:read"]}),
        )
        .unwrap(),
    );
    let server = support::start_with(options).await;
    let made = server.camera("t", "s", "cam-1").await;
    assert_eq!(made["rtsp_url"], "rtsp://camera.local/stream");
    for path in [
        CAMERAS,
        "/api/v1/cameras/cam-1/",
        "/api/v1/events/?limit=100",
    ] {
        let text = get(&server, path).await.to_string();
        assert!(!text.contains("secret"), "{path}: {text}");
    }
    let (_, whole) = server
        .call("keeper", "GET", "/api/v1/cameras/cam-1/", Value::Null)
        .await;
    assert_eq!(whole["rtsp_url"], "rtsp://user:secret@camera.local/stream");
    assert_eq!(whole["config_version"], made["config_version"]);
}

async fn an_edit_of_an_old_version_is_refused() {
    let server = start().await;
    server.camera("t", "s", "cam-1").await;
    let url = format!("{}{CAMERAS}cam-1/", server.url);
    let read = server
        .send(ADMIN, Method::GET, &format!("{CAMERAS}cam-1/"), None)
        .await;
    let tag = read.headers()["etag"].clone();
    let put = |tag: reqwest::header::HeaderValue, score: f64| {
        server
            .http
            .put(&url)
            .bearer_auth(ADMIN)
            .header("If-Match", tag)
            .json(&json!({"min_score": score}))
            .send()
    };
    let first = put(tag.clone(), 0.5).await.unwrap();
    assert_eq!(first.status(), 200);
    assert_ne!(first.headers()["etag"], tag);
    assert_eq!(put(tag.clone(), 0.6).await.unwrap().status(), 412);
    let delete = server
        .http
        .delete(&url)
        .bearer_auth(ADMIN)
        .header("If-Match", &tag);
    assert_eq!(delete.send().await.unwrap().status(), 412);
    assert_eq!(
        get(&server, "/api/v1/cameras/cam-1/").await["min_score"],
        0.5
    );
    assert_eq!(
        put("nonsense".parse().unwrap(), 0.6)
            .await
            .unwrap()
            .status(),
        400
    );
}

async fn lists_are_cut_into_pages() {
    let server = start().await;
    for n in 0..5 {
        server.camera("t", "s", &format!("cam-{n}")).await;
    }
    server.camera("t", "s2", "cam-elsewhere").await;
    let mut seen = Vec::new();
    let mut cursor = String::new();
    for _ in 0..4 {
        let page = get(&server, &format!("{CAMERAS}?limit=2{cursor}")).await;
        seen.extend(names(&page["cameras"], "camera_uuid"));
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(seen, ["cam-0", "cam-1", "cam-2", "cam-3", "cam-4"]);
}

async fn equal_sites_have_equal_versions_and_every_edit_shows() {
    let server = start().await;
    let version = "config/version";
    let empty = get(&server, &format!("/api/v1/tenants/t/sites/s/{version}")).await;
    assert_eq!(empty["last_updated"], "1970-01-01T00:00:00.000Z");
    server.camera("t", "s", "cam-1").await;
    let one = get(&server, &format!("/api/v1/tenants/t/sites/s/{version}")).await;
    assert_ne!(one["config_version"], empty["config_version"]);
    let zones = "/api/v1/tenants/t/sites/s/zones/";
    let zone = json!({"zone_id": 7, "name": "yard", "kind": "exclude", "polygon": [[0, 0], [9, 0], [9, 9]]});
    let (status, _) = server.call(ADMIN, "POST", zones, zone.clone()).await;
    assert_eq!(status, 201);
    let (status, _) = server.call(ADMIN, "POST", zones, zone).await;
    assert_eq!(status, 409);
    let zoned = get(&server, &format!("/api/v1/tenants/t/sites/s/{version}")).await;
    assert_eq!(zoned["config_version"], one["config_version"]);
    assert_ne!(zoned["zone_version"], one["zone_version"]);
    let (status, changed) = server
        .call(ADMIN, "PUT", &format!("{zones}7/"), json!({"priority": 5}))
        .await;
    assert_eq!((status.as_u16(), &changed["name"]), (200, &json!("yard")));
    let (status, _) = server
        .call(ADMIN, "DELETE", &format!("{zones}7/"), Value::Null)
        .await;
    assert_eq!(status, 200);
    let back = get(&server, &format!("/api/v1/tenants/t/sites/s/{version}")).await;
    assert_eq!(back["zone_version"], one["zone_version"]);
}

async fn a_site_may_demand_current_versions() {
    let server = start().await;
    server.runner("t", "s", "r", 4).await;
    let camera = server.camera("t", "s", "cam-1").await;
    let (status, _) = server
        .call(
            ADMIN,
            "PUT",
            "/api/v1/tenants/t/sites/s/",
            json!({"require_current_versions": true}),
        )
        .await;
    assert_eq!(status, 200);
    let ask = |version: &Value| json!({"camera_uuid": "cam-1", "runner_id": "r", "config_version": version});
    let acquire = "/api/v1/leases/acquire/";
    let (status, problem) = server
        .call(ADMIN, "POST", acquire, ask(&json!("old")))
        .await;
    assert_eq!(
        (status.as_u16(), &problem["code"]),
        (409, &json!("CONFIG_VERSION_MISMATCH"))
    );
    let site = get(&server, "/api/v1/tenants/t/sites/s/config/version").await;
    for current in [&camera["config_version"], &site["config_version"]] {
        let (status, lease) = server.call(ADMIN, "POST", acquire, ask(current)).await;
        assert_eq!(status, 200, "{lease}");
    }
}

async fn a_lease_needs_a_known_camera_and_runner_and_room() {
    let server = start().await;
    server.runner("t", "s", "r", 1).await;
    server.camera("t", "s", "cam-1").await;
    server.camera("t", "s", "cam-2").await;
    let (status, problem) = server.lease_camera("cam-9", "r").await;
    assert_eq!(
        (status.as_u16(), &problem["code"]),
        (404, &json!("CAMERA_NOT_FOUND"))
    );
    let (status, problem) = server.lease_camera("cam-1", "nobody").await;
    assert_eq!(
        (status.as_u16(), &problem["code"]),
        (404, &json!("RUNNER_NOT_FOUND"))
    );
    let (status, lease) = server.lease_camera("cam-1", "r").await;
    assert_eq!(status, 200);
    assert_eq!(
        (&lease["tenant_id"], &lease["site_id"]),
        (&json!("t"), &json!("s"))
    );
    // Where clients of the first control plane look for it.
    assert_eq!(lease["success"], true);
    assert_eq!(lease["lease"]["lease_id"], lease["lease_id"]);
    assert_eq!(lease["lease"]["token"], lease["token"]);
    let (status, problem) = server.lease_camera("cam-2", "r").await;
    assert_eq!(
        (status.as_u16(), &problem["code"]),
        (409, &json!("RUNNER_AT_CAPACITY"))
    );
    // Again what it has already, at its limit.
    let (status, again) = server.lease_camera("cam-1", "r").await;
    assert_eq!((status.as_u16(), &again["token"]), (200, &lease["token"]));
    let free = get(&server, "/api/v1/cameras/available/?tenant_id=t&site_id=s").await;
    assert_eq!(free["cameras"], json!(["cam-2"]));
    let (status, _) = server
        .call(ADMIN, "DELETE", &format!("{CAMERAS}cam-1/"), Value::Null)
        .await;
    assert_eq!(status, 200);
    let leases = get(&server, "/api/v1/leases/runner/r/").await;
    assert_eq!(leases, json!([]), "a camera that is gone keeps no lease");
}

async fn a_new_incarnation_waits_for_the_old_one_and_releases_its_leases() {
    let server = start().await;
    let register = |incarnation: &str| {
        json!({"runner_id": "r", "tenant_id": "t", "site_id": "s", "deployment_group": "g",
            "deployment_version": "1", "host": "h", "port": 1, "incarnation": incarnation,
            "ttl_seconds": server.either(60, 2)})
    };
    let path = "/api/v1/runners/register/";
    server.camera("t", "s", "cam-1").await;
    let (status, runner) = server.call(ADMIN, "POST", path, register("one")).await;
    assert_eq!((status.as_u16(), &runner["capacity"]), (200, &json!(16)));
    assert_eq!(runner["created"], true);
    let acquire = json!({"camera_uuid": "cam-1", "runner_id": "r", "ttl_seconds": 3600});
    let (status, _) = server
        .call(ADMIN, "POST", "/api/v1/leases/acquire", acquire.clone())
        .await;
    assert_eq!(status, 200);
    let (status, _) = server.call(ADMIN, "POST", path, register("one")).await;
    assert_eq!(status, 200, "a repeated call is no other incarnation");
    assert_eq!(
        get(&server, "/api/v1/runners/r").await["assigned_cameras"],
        json!(["cam-1"])
    );
    let (status, problem) = server.call(ADMIN, "POST", path, register("two")).await;
    assert_eq!(
        (status.as_u16(), &problem["code"]),
        (409, &json!("RUNNER_ALREADY_REGISTERED"))
    );
    let left = problem["retry_after_seconds"].as_f64().unwrap();
    assert!(left > 0.0 && left <= 60.0, "{problem}");
    server.pass(61_000, 2_100).await;
    assert_eq!(
        get(&server, "/api/v1/runners/r").await["status"],
        "inactive"
    );
    let (status, runner) = server.call(ADMIN, "POST", path, register("two")).await;
    assert_eq!(
        (status.as_u16(), &runner["assigned_cameras"]),
        (200, &json!([]))
    );
    let mut old = acquire;
    old["incarnation"] = json!("one");
    let (status, problem) = server
        .call(ADMIN, "POST", "/api/v1/leases/acquire", old)
        .await;
    assert_eq!(
        (status.as_u16(), &problem["code"]),
        (409, &json!("RUNNER_ALREADY_REGISTERED"))
    );
}

async fn a_camera_is_offered_only_to_a_runner_that_could_be_granted_it() {
    let server = start().await;
    for (camera, runner) in [("cam-1", "run-1"), ("cam-2", "run-2")] {
        server.camera("t", "s", camera).await;
        server.runner("t", "s", runner, 4).await;
        let (code, lease) = server.lease_camera(camera, runner).await;
        assert_eq!(code, 200, "{lease}");
    }
    let held = async |camera: &str| -> lease::Lease {
        let path = "/api/v1/authority/lease";
        let key = json!(format!("camera:{camera}"));
        let (code, lease) = server.call(ADMIN, "POST", path, key).await;
        assert_eq!(code, 200, "{lease}");
        serde_json::from_value(lease).unwrap()
    };
    let (first, second) = (held("cam-1").await, held("cam-2").await.holder);
    let offered = async |to: &lease::Holder| {
        let step = lease::HandoffStep::Offer {
            lease: lease::LeaseRef::from(&first),
            successor: to.clone(),
            prepare_ms: 1_000,
            drain_ms: 1_000,
            confirm_ms: 1_000,
        };
        let path = "/api/v1/authority/handoff";
        let (code, answer) = server.call(ADMIN, "POST", path, json!(step)).await;
        (code.as_u16(), answer["code"].clone())
    };
    let nobody = lease::Holder::new("nobody", "1").unwrap();
    assert_eq!(offered(&nobody).await, (404, json!("RUNNER_NOT_FOUND")));
    let other = lease::Holder::new("run-2", "other").unwrap();
    assert_eq!(offered(&other).await.1, json!("RUNNER_ALREADY_REGISTERED"));
    for (order, code) in [
        ("cordon", json!("RUNNER_AT_CAPACITY")),
        ("uncordon", Value::Null),
    ] {
        let path = format!("/api/v1/runners/run-2/{order}/");
        let (status, _) = server.call(ADMIN, "POST", &path, json!({})).await;
        assert_eq!(status, 200);
        assert_eq!(offered(&second).await.1, code, "after {order}");
    }
}

/// One step of a hand-over through the kernel's interface: the state, or the code of a problem.
async fn step(server: &Running, step: &lease::HandoffStep) -> Value {
    let path = "/api/v1/authority/handoff";
    let (_, answer) = server.call(ADMIN, "POST", path, json!(step)).await;
    let word = answer.get("state").or(answer.get("code"));
    word.cloned().unwrap_or(answer)
}

async fn a_camera_is_handed_over_only_to_a_runner_with_room() {
    let server = start().await;
    server.runner("t", "s", "run-1", 8).await;
    server.runner("t", "s", "run-2", 2).await;
    for n in 1..=5 {
        server.camera("t", "s", &format!("cam-{n}")).await;
    }
    let lease = async |camera: &str, runner: &str| {
        let (code, lease) = server.lease_camera(camera, runner).await;
        assert_eq!(code, 200, "{lease}");
        let path = "/api/v1/authority/lease";
        let key = json!(format!("camera:{camera}"));
        let (_, lease) = server.call(ADMIN, "POST", path, key).await;
        serde_json::from_value::<lease::Lease>(lease).unwrap()
    };
    let release = async |lease: &lease::Lease| {
        let path = format!("/api/v1/leases/{}/release", lease.id);
        let (code, answer) = server.call(ADMIN, "DELETE", &path, Value::Null).await;
        assert_eq!(code, 200, "{answer}");
    };
    let first = lease("cam-1", "run-1").await;
    let second = lease("cam-2", "run-1").await;
    let [third, fourth] = [lease("cam-3", "run-2").await, lease("cam-4", "run-2").await];
    let offer = |lease: &lease::Lease| lease::HandoffStep::Offer {
        lease: lease::LeaseRef::from(lease),
        successor: third.holder.clone(),
        prepare_ms: 60_000,
        drain_ms: 60_000,
        confirm_ms: 60_000,
    };
    let full = json!("RUNNER_AT_CAPACITY");
    assert_eq!(step(&server, &offer(&first)).await, full, "it has two");
    release(&third).await;
    assert_eq!(step(&server, &offer(&first)).await, "open");
    assert_eq!(step(&server, &offer(&first)).await, "open", "repeated");
    // The last place is promised, as soon as this server has seen its own offer.
    leasehold_testkit::wait::until(support::LONG, "the offer is seen", async || {
        let path = "/api/v1/runners/run-2/heartbeat/";
        let (_, answer) = server.call(ADMIN, "PUT", path, json!({})).await;
        names(&answer["offers"], "camera_uuid") == ["cam-1"]
    })
    .await;
    assert_eq!(step(&server, &offer(&second)).await, full);

    // The place is taken after it was promised: the commit itself finds that out.
    let prepare = lease::HandoffStep::Prepare {
        key: first.key.clone(),
        successor: third.holder.clone(),
    };
    assert_eq!(step(&server, &prepare).await, "open");
    let fifth = lease("cam-5", "run-2").await;
    let commit = lease::HandoffStep::Commit {
        lease: lease::LeaseRef::from(&first),
        limit: None,
    };
    assert_eq!(step(&server, &commit).await, "void");
    let shown = get(&server, "/api/v1/runners/run-1/").await;
    assert_eq!(shown["assigned_cameras"], json!(["cam-1", "cam-2"]));
    release(&fifth).await;
    assert_eq!(step(&server, &commit).await, "moved");
    let shown = get(&server, "/api/v1/runners/run-2/").await;
    assert_eq!(shown["assigned_cameras"], json!(["cam-1", "cam-4"]));
    assert_eq!(fourth.holder, third.holder);
}

async fn a_runner_is_admitted_by_the_kernels_interface_too() {
    let server = start().await;
    server.runner("t", "s", "run-1", 1).await;
    for camera in ["cam-1", "cam-2", "off"] {
        server.camera("t", "s", camera).await;
    }
    let (code, lease) = server.lease_camera("cam-1", "run-1").await;
    assert_eq!(code, 200, "{lease}");
    let path = "/api/v1/authority/lease";
    let (_, held) = server
        .call(ADMIN, "POST", path, json!("camera:cam-1"))
        .await;
    let held: lease::Lease = serde_json::from_value(held).unwrap();
    let ask = async |camera: &str| {
        let key = format!("camera:{camera}").parse().unwrap();
        let request = lease::Acquire::one(key, held.holder.clone(), held.ttl);
        let path = "/api/v1/authority/acquire";
        server.call(ADMIN, "POST", path, json!(request)).await.1
    };
    let again: lease::Acquired = serde_json::from_value(ask("cam-1").await).unwrap();
    let lease::Acquired::Granted { leases, .. } = again else {
        panic!("what it has already: {again:?}");
    };
    assert_eq!(leases[0].token, held.token);
    let full: lease::Acquired = serde_json::from_value(ask("cam-2").await).unwrap();
    assert!(
        matches!(&full, lease::Acquired::Refused(it) if matches!(it.cause, lease::Cause::Limit { .. })),
        "{full:?}"
    );
    let off = format!("{CAMERAS}off/");
    let (code, _) = server
        .call(ADMIN, "PUT", &off, json!({"enabled": false}))
        .await;
    assert_eq!(code, 200);
    assert_eq!(ask("off").await["code"], "CAMERA_DISABLED");

    // By its plain key, and together with others.
    let plain = json!({"kind": "camera", "id": "off", "holder": "run-1", "ttl_seconds": 30,
        "incarnation": held.holder.incarnation});
    let path = "/api/v1/leases/acquire";
    let (_, problem) = server.call(ADMIN, "POST", path, plain).await;
    assert_eq!(problem["code"], "CAMERA_DISABLED", "{problem}");
    let several = ["job:x", "camera:off"].map(|key| key.parse().unwrap());
    let request = lease::Acquire {
        want: lease::Want::All(several.into()),
        ..lease::Acquire::one("job:x".parse().unwrap(), held.holder.clone(), held.ttl)
    };
    let path = "/api/v1/authority/acquire";
    let (code, problem) = server.call(ADMIN, "POST", path, json!(request)).await;
    assert_eq!(code, 400, "{problem}");
}

async fn a_cordoned_runner_keeps_what_it_has_and_a_removed_one_nothing() {
    let server = start().await;
    server.runner("t", "s", "r", 4).await;
    server.camera("t", "s", "cam-1").await;
    server.camera("t", "s", "cam-2").await;
    server.lease_camera("cam-1", "r").await;
    let (status, runner) = server
        .call(ADMIN, "POST", "/api/v1/runners/r/cordon/", Value::Null)
        .await;
    assert_eq!(
        (status.as_u16(), &runner["status"]),
        (200, &json!("cordoned"))
    );
    let (status, problem) = server.lease_camera("cam-2", "r").await;
    assert_eq!(
        (status.as_u16(), &problem["code"]),
        (409, &json!("RUNNER_AT_CAPACITY"))
    );
    assert_eq!(server.lease_camera("cam-1", "r").await.0, 200);
    server
        .call(ADMIN, "POST", "/api/v1/runners/r/uncordon/", Value::Null)
        .await;
    assert_eq!(server.lease_camera("cam-2", "r").await.0, 200);
    let list = get(&server, "/api/v1/runners/?tenant_id=t").await;
    assert_eq!(
        list["runners"][0]["assigned_cameras"],
        json!(["cam-1", "cam-2"])
    );
    let (status, removed) = server
        .call(ADMIN, "DELETE", "/api/v1/runners/r/", Value::Null)
        .await;
    assert_eq!(
        (status.as_u16(), &removed["leases_released"]),
        (200, &json!(2))
    );
    let (status, _) = server
        .call(ADMIN, "GET", "/api/v1/runners/r/", Value::Null)
        .await;
    assert_eq!(status, 404);
    server.runner("t", "s", "r", 4).await;
}

async fn one_heartbeat_renews_everything_and_tells_everything() {
    let server = start().await;
    server.runner("t", "s", "r1", 4).await;
    for name in ["cam-1", "cam-2", "cam-3"] {
        server.camera("t", "s", name).await;
    }
    let (_, kept) = server.lease_camera("cam-1", "r1").await;
    let (_, revoked) = server.lease_camera("cam-2", "r1").await;
    let path = format!(
        "/api/v1/leases/{}/revoke/",
        revoked["lease_id"].as_str().unwrap()
    );
    server
        .call(ADMIN, "POST", &path, json!({"reason": "maintenance"}))
        .await;
    server.pass(20_000, 50).await;
    let beat = |leases: Vec<&Value>| json!({"current_load": 2, "metrics": {"fps": 25}, "active_leases": leases});
    let nonsense = json!("not-a-lease");
    let body = beat(vec![&kept["lease_id"], &revoked["lease_id"], &nonsense]);
    let (status, answer) = server
        .call(ADMIN, "PUT", "/api/v1/runners/r1/heartbeat/", body)
        .await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(names(&answer["leases"], "camera_uuid"), ["cam-1"]);
    assert_eq!(names(&answer["take"], "camera_uuid"), ["cam-2", "cam-3"]);
    assert_eq!(names(&answer["cameras"], "camera_uuid"), ["cam-1"]);
    let reasons: Vec<_> = answer["lost"]
        .as_array()
        .unwrap()
        .iter()
        .map(|lost| {
            (
                lost["lease_id"].clone(),
                lost["loss"]["reason"].clone(),
                lost["loss"]["detail"].clone(),
            )
        })
        .collect();
    assert!(
        reasons.contains(&(
            revoked["lease_id"].clone(),
            json!("revoked"),
            json!("maintenance")
        )),
        "{reasons:?}"
    );
    assert!(
        reasons.contains(&(nonsense, json!("unknown"), Value::Null)),
        "{reasons:?}"
    );
    let site = get(&server, "/api/v1/tenants/t/sites/s/config/version").await;
    assert_eq!(answer["config"], site);
    // Twenty seconds later the first grant alone would have lapsed.
    server.pass(20_000, 50).await;
    let runner = get(&server, "/api/v1/runners/r1/").await;
    assert_eq!(
        (&runner["current_load"], &runner["metrics"]["fps"]),
        (&json!(2), &json!(25))
    );
    assert_eq!(runner["assigned_cameras"], json!(["cam-1"]));
    server
        .call(ADMIN, "POST", "/api/v1/runners/r1/drain/", Value::Null)
        .await;
    server.runner("t", "s", "r2", 4).await;
    let (_, answer) = server
        .call(ADMIN, "PUT", "/api/v1/runners/r1/heartbeat/", beat(vec![]))
        .await;
    assert_eq!(answer["orders"], json!(["drain"]));
    let path = "/api/v1/runners/r1/drain/?hard=true";
    let (status, _) = server.call(ADMIN, "POST", path, Value::Null).await;
    assert_eq!(status, 200);
    let path = "/api/v1/runners/r1/heartbeat/";
    let (_, answer) = server.call(ADMIN, "PUT", path, beat(vec![])).await;
    assert_eq!(answer["orders"], json!(["drain", "hard"]));
    assert_eq!(
        answer["give_up"],
        json!([{"camera_uuid": "cam-1", "reason": "draining", "to": "r2",
            "to_incarnation": "worker-01.example.com_8080"}])
    );
    let (_, answer) = server
        .call(ADMIN, "PUT", "/api/v1/runners/r2/heartbeat/", beat(vec![]))
        .await;
    assert_eq!(names(&answer["take"], "camera_uuid"), ["cam-2", "cam-3"]);
    let assigned = get(&server, "/api/v1/runners/r2/assignments/").await;
    assert_eq!(assigned["take"], answer["take"]);
    let plan = get(&server, "/api/v1/tenants/t/sites/s/plan").await;
    assert_eq!(
        (&plan["kept"], &plan["moves"][0]["to"]),
        (&json!(0), &json!("r2"))
    );
    let reported = get(&server, "/api/v1/cameras/cam-1/explain").await;
    assert_eq!(
        (&reported["holder"], &reported["assigned"]),
        (&json!("r1"), &json!("r2"))
    );
}

async fn orders_and_assignments_are_of_one_moment() {
    let server = start().await;
    for name in ["r1", "r2"] {
        server.runner("t", "s", name, 4).await;
    }
    server.camera("t", "s", "cam-1").await;
    assert_eq!(server.lease_camera("cam-1", "r1").await.0, 200);
    for _ in 0..60 {
        let order = server.call(
            ADMIN,
            "POST",
            "/api/v1/runners/r1/drain/?hard=true",
            Value::Null,
        );
        let beat = server.call(ADMIN, "PUT", "/api/v1/runners/r1/heartbeat/", json!({}));
        let (_, (status, answer)) = tokio::join!(order, beat);
        assert_eq!(status, 200, "{answer}");
        // Whoever is to give cameras up learns how in the same answer.
        let drains = names(&answer["give_up"], "reason") == ["draining"];
        let orders = if drains {
            json!(["drain", "hard"])
        } else {
            json!([])
        };
        assert_eq!(answer["orders"], orders, "{answer}");
        let path = "/api/v1/runners/r1/uncordon/";
        let (status, _) = server.call(ADMIN, "POST", path, Value::Null).await;
        assert_eq!(status, 200);
    }
}

async fn a_heartbeat_after_a_long_silence_brings_the_runner_back() {
    let server = start().await;
    let runner = json!({"runner_id": "r", "tenant_id": "t", "site_id": "s", "deployment_group": "g",
        "deployment_version": "1", "host": "h", "port": 1, "ttl_seconds": server.either(30, 1)});
    let ttl = runner["ttl_seconds"].clone();
    let (status, _) = server
        .call(ADMIN, "POST", "/api/v1/runners/register/", runner)
        .await;
    assert_eq!(status, 200);
    server.pass(300_000, 1_200).await;
    assert_eq!(
        get(&server, "/api/v1/runners/r/").await["status"],
        "inactive"
    );
    let (status, answer) = server
        .call(ADMIN, "PUT", "/api/v1/runners/r/heartbeat/", json!({}))
        .await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(get(&server, "/api/v1/runners/r/").await["status"], "active");
    let presence = get(&server, "/api/v1/leases/?kind=runner&id=t/r").await;
    let presence = &presence["leases"][0];
    assert_eq!(
        presence["ttl_seconds"].as_f64(),
        ttl.as_f64(),
        "as registered"
    );
    let (status, problem) = server
        .call(
            ADMIN,
            "PUT",
            "/api/v1/runners/r/heartbeat/",
            json!({"incarnation": "other"}),
        )
        .await;
    assert_eq!(
        (status.as_u16(), &problem["code"]),
        (409, &json!("RUNNER_ALREADY_REGISTERED"))
    );
    let (status, _) = server
        .call(ADMIN, "PUT", "/api/v1/runners/x/heartbeat/", json!({}))
        .await;
    assert_eq!(status, 404);
}

#[tokio::test]
async fn cameras_are_spread_over_hosts_before_runners() {
    let server = start().await;
    for (runner, host) in [("x1", "x"), ("x2", "x"), ("y1", "y")] {
        let body = json!({"runner_id": runner, "tenant_id": "t", "site_id": "s", "capacity": 16,
            "deployment_group": "g", "deployment_version": "1", "host": host, "port": 1});
        let path = "/api/v1/runners/register/";
        let (status, answer) = server.call(ADMIN, "POST", path, body).await;
        assert_eq!(status, 200, "{answer}");
    }
    for n in 0..16 {
        server.camera("t", "s", &format!("cam-{n:02}")).await;
    }
    let plan = get(&server, "/api/v1/tenants/t/sites/s/plan").await;
    let runners = names(&plan["moves"], "to");
    let count = |runner: &str| runners.iter().filter(|it| *it == runner).count();
    assert_eq!((count("x1"), count("x2"), count("y1")), (4, 4, 8), "{plan}");
}

/// Only where time is moved by hand: a runner is busy for half a minute before anything moves.
#[tokio::test]
async fn a_busy_runner_is_given_fewer_cameras_and_all_again_when_it_is_idle() {
    let server = start().await;
    for runner in ["a", "b"] {
        server.runner("t", "s", runner, 20).await;
    }
    for n in 0..20 {
        server.camera("t", "s", &format!("cam-{n:02}")).await;
    }
    // A heartbeat of a runner that takes and gives up whatever it is to.
    let beat = async |runner: &str, load: f64| {
        let path = format!("/api/v1/runners/{runner}/heartbeat/");
        let body = json!({"metrics": {"load": load}});
        let (status, answer) = server.call(ADMIN, "PUT", &path, body).await;
        assert_eq!(status, 200, "{answer}");
        let leases = answer["leases"].as_array().unwrap();
        for it in answer["give_up"].as_array().unwrap() {
            assert_eq!(it["reason"], "balance", "{it}");
            let lease = leases
                .iter()
                .find(|lease| lease["camera_uuid"] == it["camera_uuid"]);
            let id = lease.unwrap()["lease_id"].as_str().unwrap();
            let path = format!("/api/v1/leases/{id}/release");
            let (status, answer) = server.call(ADMIN, "DELETE", &path, Value::Null).await;
            assert_eq!(status, 200, "{answer}");
        }
        for camera in names(&answer["take"], "camera_uuid") {
            let body = json!({"camera_uuid": camera, "runner_id": runner, "ttl_seconds": 60});
            let path = "/api/v1/leases/acquire/";
            let (status, answer) = server.call(ADMIN, "POST", path, body).await;
            assert_eq!(status, 200, "{answer}");
        }
    };
    let both = async |load: f64, times: usize| {
        for _ in 0..times {
            beat("a", load).await;
            beat("b", 0.2).await;
            server.pass(10_000, 0).await;
        }
    };
    let shown = async |runner: &str| {
        let it = get(&server, &format!("/api/v1/runners/{runner}/")).await;
        let cameras = it["assigned_cameras"].as_array().unwrap().len();
        (cameras, it["allowance"].clone())
    };
    both(0.5, 2).await;
    assert_eq!(shown("a").await, (10, Value::Null));
    both(1.0, 3).await;
    assert_eq!(shown("a").await, (10, Value::Null), "a peak moves nothing");
    both(1.0, 1).await;
    both(0.8, 6).await;
    assert_eq!(shown("a").await, (8, json!(8)));
    assert_eq!(shown("b").await, (12, Value::Null));
    // What is new goes to the other one.
    for n in 20..24 {
        server.camera("t", "s", &format!("cam-{n:02}")).await;
    }
    both(0.8, 3).await;
    assert_eq!(shown("a").await, (8, json!(8)));
    assert_eq!(shown("b").await, (16, Value::Null));
    let path = "/api/v1/cameras/cam-00/explain";
    let reported = get(&server, path).await;
    let candidates = reported["candidates"].as_array().unwrap();
    let busy = candidates.iter().find(|it| it["runner_id"] == "a");
    assert_eq!(busy.unwrap()["obstacles"], json!(["busy"]), "{reported}");
    both(0.4, 45).await;
    assert_eq!(shown("a").await, (12, Value::Null));
    assert_eq!(shown("b").await, (12, Value::Null));
}

async fn scopes_are_needed() {
    let server = start().await;
    for (token, method, path) in [
        (READER, "GET", CAMERAS),
        (READER, "POST", "/api/v1/runners/register"),
        ("", "GET", "/api/v1/runners/"),
    ] {
        let (status, _) = server.call(token, method, path, Value::Null).await;
        assert!(
            [401, 403].contains(&status.as_u16()),
            "{method} {path}: {status}"
        );
    }
    let (status, _) = server.call(TENANT_A, "GET", CAMERAS, Value::Null).await;
    assert_eq!(status, 403);
}

on_every_backend!(
    a_camera_that_is_removed_while_it_is_acquired_keeps_no_lease,
    a_camera_lives_with_all_its_fields_and_defaults,
    every_wrong_field_of_a_camera_is_named_and_nothing_is_kept,
    credentials_are_shown_only_with_their_own_scope,
    an_edit_of_an_old_version_is_refused,
    lists_are_cut_into_pages,
    equal_sites_have_equal_versions_and_every_edit_shows,
    a_site_may_demand_current_versions,
    a_lease_needs_a_known_camera_and_runner_and_room,
    a_new_incarnation_waits_for_the_old_one_and_releases_its_leases,
    a_camera_is_offered_only_to_a_runner_that_could_be_granted_it,
    a_camera_is_handed_over_only_to_a_runner_with_room,
    a_runner_is_admitted_by_the_kernels_interface_too,
    a_cordoned_runner_keeps_what_it_has_and_a_removed_one_nothing,
    one_heartbeat_renews_everything_and_tells_everything,
    orders_and_assignments_are_of_one_moment,
    a_heartbeat_after_a_long_silence_brings_the_runner_back,
    scopes_are_needed,
);
