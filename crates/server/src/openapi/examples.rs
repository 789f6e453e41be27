//! One example of every body, of what is inside it, and of every parameter, as one story: a tenant `acme`
//! with a site `berlin`, whose camera `front-door` is run by `runner-1`.
//!
//! The tests send each of them to a server and check it against its schema.

use leasehold_api::Code;
use serde_json::{Value, json};

use super::constraints::operations;

const AT: &str = "2027-01-15T08:00:00.000Z";
const UNTIL: &str = "2027-01-15T08:01:00.000Z";
const TOKEN: u64 = 1_800_000_000_000;
const LEASE_ID: &str = "01a318c5-c000-8000-8000-000000000001";
const SESSION_ID: &str = "01a318c5-c000-7000-9d3b-5f1e0c4a2b71";
const CONFIG_VERSION: &str = "3f7a1c52d0b94e86";
const ZONE_VERSION: &str = "9be0417fa2c85d13";

/// With further fields.
fn with(mut one: Value, other: Value) -> Value {
    if let (Value::Object(one), Value::Object(other)) = (&mut one, other) {
        one.extend(other);
    }
    one
}

fn key() -> Value {
    json!({"kind": "printer", "id": "hall-2"})
}

fn pool() -> Value {
    json!({"kind": "gpu", "ids": ["gpu-0", "gpu-1"]})
}

fn on_outage() -> Value {
    json!({"policy": "hold", "grace_seconds": 300})
}

fn holder() -> Value {
    json!({"holder": "worker-7", "incarnation": "boot-1"})
}

fn acquires() -> [Value; 4] {
    let keys =
        json!({"keys": [{"kind": "printer", "id": "hall-3"}, {"kind": "scanner", "id": "hall-3"}]});
    [
        with(
            with(key(), holder()),
            json!({"ttl_seconds": 60, "on_outage": on_outage(), "labels": {"team": "print"}}),
        ),
        with(keys, json!({"holder": "worker-8", "wait_seconds": 0})),
        with(
            json!({"pool": pool(), "request_id": "frame-4711"}),
            holder(),
        ),
        json!({"camera_uuid": "front-door", "runner_id": "runner-1", "ttl_seconds": 60}),
    ]
}

fn fenced() -> Value {
    with(key(), json!({"token": TOKEN}))
}

fn lease() -> Value {
    with(
        with(fenced(), holder()),
        json!({
            "lease_id": LEASE_ID, "acquired_at": AT, "expires_at": UNTIL, "ttl_seconds": 60,
            "last_heartbeat": AT, "status": "active", "processing_stats": {},
            "on_outage": on_outage(), "release_on_death": false, "labels": {"team": "print"},
        }),
    )
}

fn motion_gating() -> Value {
    json!({"enabled": true, "min_area_px": 1500})
}

fn zone() -> Value {
    json!({
        "zone_id": 1, "name": "Driveway", "kind": "include",
        "polygon": [[0, 0], [640, 0], [640, 480], [0, 480]], "allow_labels": ["person", "car"],
    })
}

fn camera() -> Value {
    json!({
        "camera_uuid": "front-door", "rtsp_url": "rtsp://camera-1.example.com/stream",
        "zones": [zone()], "motion_gating": motion_gating(), "min_score": 0.4,
    })
}

fn kept_camera() -> Value {
    let versions = json!({"config_version": CONFIG_VERSION, "zone_version": ZONE_VERSION});
    let site =
        json!({"tenant_id": "acme", "site_id": "berlin", "created_at": AT, "updated_at": AT});
    with(with(camera(), site), versions)
}

fn registration() -> Value {
    json!({
        "runner_id": "runner-1", "tenant_id": "acme", "site_id": "berlin",
        "deployment_group": "production", "deployment_version": "1.4.0",
        "host": "runner-1.example.com", "port": 8080, "capacity": 16, "capabilities": ["h264"],
        "incarnation": "boot-1",
    })
}

fn runner() -> Value {
    let state = json!({
        "status": "active", "current_load": 1, "metrics": {}, "registered_at": AT,
        "last_heartbeat": AT, "present_until": UNTIL, "assigned_cameras": ["front-door"],
    });
    with(registration(), state)
}

fn event() -> Value {
    let about = json!({
        "event_id": "42", "revision": 42, "event_type": "lease_acquired", "timestamp": AT,
        "key": "printer:hall-2", "lease_id": LEASE_ID, "expires_at": UNTIL, "details": {},
    });
    with(with(fenced(), holder()), about)
}

fn session() -> Value {
    json!({
        "session_id": SESSION_ID, "service_ref": "1:0:19:132F:3EF:1:C00000:0:0:0:",
        "profile": "high", "state": "running", "correlation_id": "tv-4711", "created_at": AT,
        "updated_at": AT, "lease_expires_at": UNTIL, "heartbeat_interval": 5,
        "playback_url": format!("/api/v3/sessions/{SESSION_ID}/hls/index.m3u8"),
    })
}

fn target() -> Value {
    json!({"id": "router-1", "url": "http://router-1.example.com/status", "intervalSeconds": 30})
}

fn problem() -> Value {
    let code = Code::LeaseAlreadyHeld;
    let detail = "printer:hall-2 is held by worker-7";
    json!({
        "type": code.type_uri(), "title": code.title(), "status": code.status(), "detail": detail,
        "code": code, "request_id": "0f8b2c", "errors": [], "error_code": code, "message": detail,
        "holder": "worker-7", "retry_after_seconds": 42,
        "held": with(json!({"key": "printer:hall-2", "token": TOKEN}), holder()),
    })
}

fn deployment() -> Value {
    json!({
        "tenant_id": "acme", "site_id": "berlin", "deployment_group": "production",
        "from_version": "1.4.0", "to_version": "1.5.0", "step": 4, "health_timeout_seconds": 120,
    })
}

fn credential() -> Value {
    json!({"name": "print workers", "scopes": ["leases:write"], "tenant_id": "acme"})
}

/// The examples of each schema.
fn schemas() -> Vec<(&'static str, Vec<Value>)> {
    let one = |schema, value| (schema, vec![value]);
    let page =
        |list: &str, item: Value| json!({ list: [item], "next_cursor": "cHJpbnRlcjpoYWxsLTI" });
    let start = json!({
        "type": "stream.start", "service_ref": "1:0:19:132F:3EF:1:C00000:0:0:0:", "profile": "high",
        "correlation_id": "tv-4711",
    });
    vec![
        ("AcquireRequest", acquires().into()),
        one("KeyParts", key()),
        one("Pool", pool()),
        one("OutagePolicy", on_outage()),
        one("Lease", lease()),
        one("LeaseList", page("leases", lease())),
        one(
            "RenewRequest",
            json!({"token": TOKEN, "processing_stats": {"pages": 12}}),
        ),
        one("RenewItem", fenced()),
        one(
            "RenewManyRequest",
            with(holder(), json!({"leases": [fenced()]})),
        ),
        one(
            "HeartbeatRequest",
            json!({"processing_stats": {"pages": 12}}),
        ),
        one(
            "RevokeRequest",
            json!({"reason": "the printer is being replaced"}),
        ),
        one("ValidateRequest", json!({"token": TOKEN})),
        one("FencedToken", fenced()),
        one("FenceCheck", json!({"tokens": [fenced()]})),
        one("Event", event()),
        one(
            "EventList",
            json!({"events": [event()], "more": false, "next_after": 42, "oldest": 1, "newest": 42, "gap": false}),
        ),
        one("Problem", problem()),
        one(
            "FieldError",
            json!({"field": "ttl_seconds", "expected": "1 to 3600 seconds"}),
        ),
        one(
            "PresenceRequest",
            json!({"incarnation": "boot-1", "ttl_seconds": 30, "labels": {"rack": "b2"}}),
        ),
        one(
            "CredentialRequest",
            with(credential(), json!({"expires_in_seconds": 7_776_000})),
        ),
        one("RotateRequest", json!({"grace_seconds": 3600})),
        one(
            "Credential",
            with(
                credential(),
                json!({"id": "k7m2", "state": "active", "created_at": AT}),
            ),
        ),
        one("CameraDocument", camera()),
        one("MotionGatingDocument", motion_gating()),
        one("ZoneDocument", zone()),
        one("Camera", kept_camera()),
        one("CameraList", page("cameras", kept_camera())),
        one(
            "Zone",
            with(zone(), json!({"created_at": AT, "updated_at": AT})),
        ),
        one("SiteSettings", json!({"require_current_versions": true})),
        one("DeploymentRequest", deployment()),
        one(
            "Deployment",
            with(
                deployment(),
                json!({
                    "state": "running", "note": "waits for 4 cameras", "shifted": ["front-door"],
                    "cameras_old": 11, "cameras_new": 1, "runners_new": 2, "started_at": AT,
                    "updated_at": AT, "history": [],
                }),
            ),
        ),
        one("RegisterRequest", registration()),
        one("Runner", runner()),
        one("RunnerList", page("runners", runner())),
        one("CameraStatus", json!({"state": "working"})),
        one(
            "RunnerHeartbeatRequest",
            json!({
                "current_load": 1, "metrics": {"cpu_percent": 35}, "active_leases": [LEASE_ID],
                "incarnation": "boot-1", "camera_status": {"front-door": {"state": "working"}},
            }),
        ),
        one("TargetDocument", target()),
        one("TargetList", page("targets", target())),
        (
            "IntentRequest",
            vec![
                start,
                json!({"type": "stream.stop", "session_id": SESSION_ID}),
            ],
        ),
        one("IntentParams", json!({"mode": "LIVE"})),
        one("SessionView", session()),
        one("SessionList", page("sessions", session())),
    ]
}

/// An example of each parameter, by its name.
fn parameter(name: &str) -> Option<Value> {
    Some(match name {
        "lease_id" => LEASE_ID.into(),
        "session_id" => SESSION_ID.into(),
        "tenant_id" => "acme".into(),
        "site_id" => "berlin".into(),
        "deployment_group" => "production".into(),
        "camera_uuid" => "front-door".into(),
        "zone_id" | "id" => "1".into(),
        "runner_id" => "runner-1".into(),
        "name" | "holder" => "worker-7".into(),
        "incarnation" => "boot-1".into(),
        "target_id" => "router-1".into(),
        "credential_id" => "k7m2".into(),
        "file" => "index.m3u8".into(),
        "method" => "lease".into(),
        "key" => "camera:front-door".into(),
        "kind" => "camera".into(),
        "type" => "lease_expired".into(),
        "sort" => "-expires_at".into(),
        "q" => "front".into(),
        "prefix" => "router-".into(),
        "at" => AT.into(),
        "after" | "Last-Event-ID" => 42.into(),
        "token" => TOKEN.into(),
        "width" => 1920.into(),
        "height" => 1080.into(),
        _ => return None,
    })
}

/// Puts the examples where they belong.
pub(super) fn attach(api: &mut Value) {
    for (schema, examples) in schemas() {
        if let Some(Value::Object(schema)) = api["components"]["schemas"].get_mut(schema) {
            schema.insert("examples".to_owned(), examples.into());
        }
    }
    for operation in operations(api) {
        // The kernel's values have no schema of their own: this is that of the method in the example.
        if operation["operationId"] == "authority_call" {
            operation["requestBody"]["content"]["application/json"]["example"] =
                "printer:hall-2".into();
        }
        let listed = operation
            .get_mut("parameters")
            .and_then(Value::as_array_mut);
        for parameter in listed.into_iter().flatten() {
            let example = parameter["name"].as_str().and_then(self::parameter);
            if let (Value::Object(parameter), Some(example)) = (parameter, example) {
                parameter.insert("example".to_owned(), example);
            }
        }
    }
}
