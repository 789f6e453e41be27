"""The first control plane's own client, written anew from its public behaviour, against a real server.

It takes 200 alone as success, reads `success` and `lease` of an acquire, and checks what it is given as
its data models do: required fields, types, words. Standard library only.
"""

import json
import sys
import urllib.error
import urllib.parse
import urllib.request
from datetime import datetime

LEASE_STATUS = {"active", "expired", "released", "revoked", "pending"}
CAMERA_STATUS = {"online", "offline", "error", "maintenance"}


class Client:
    """One method per call, named as there. Whatever is not a 200 is None."""

    def __init__(self, base_url, api_key):
        self.base_url = base_url.rstrip("/")
        self.headers = {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"}

    def request(self, method, path, body=None, query=None):
        url = self.base_url + path + ("?" + urllib.parse.urlencode(query) if query else "")
        data = None if body is None else json.dumps(body).encode()
        call = urllib.request.Request(url, data, self.headers, method=method)
        try:
            with urllib.request.urlopen(call, timeout=30) as answer:
                return json.load(answer) if answer.status == 200 else None
        except urllib.error.HTTPError as error:
            self.refusal = json.load(error)
            return None

    def acquire_lease(self, request):
        answer = self.request("POST", "/api/v1/leases/acquire/", request)
        return acquire_response(answer) if answer else {"success": False, "lease": None}


def time(value):
    assert isinstance(value, str), value
    return datetime.fromisoformat(value.replace("Z", "+00:00"))


def fields(document, **kinds):
    for name, kind in kinds.items():
        assert isinstance(document.get(name), kind), (name, document)


def labels(document, name):
    """None is every label, an empty list is none: they must not be mixed up."""
    value = document.get(name)
    assert value is None or (isinstance(value, list) and all(isinstance(it, str) for it in value)), (name, value)
    return value


def lease(document):
    fields(document, lease_id=str, camera_uuid=str, runner_id=str, shard_id=str, tenant_id=str, site_id=str)
    fields(document, config_version=str, zone_version=str, processing_stats=dict)
    assert document["status"] in LEASE_STATUS, document
    assert time(document["expires_at"]) > time(document["acquired_at"]), document
    time(document["last_heartbeat"])
    return document


def acquire_response(document):
    assert document["success"] is True, document
    retry = document.get("retry_after_seconds")
    assert retry is None or isinstance(retry, int), document
    return {"success": True, "lease": lease(document["lease"])}


def runner(document):
    fields(document, runner_id=str, tenant_id=str, site_id=str, deployment_group=str, deployment_version=str)
    fields(document, host=str, port=int, capacity=int, current_load=int, capabilities=list, metrics=dict)
    assert document["status"] in {"active", "inactive", "draining", "maintenance"}, document
    time(document["registered_at"])
    return document


def zone(document):
    fields(document, zone_id=int, name=str, priority=int, polygon=list)
    assert document["kind"] in {"include", "exclude"} and len(document["polygon"]) >= 3, document
    labels(document, "allow_labels"), labels(document, "deny_labels")
    return document


def camera(document):
    fields(document, camera_uuid=str, rtsp_url=str, tenant_id=str, site_id=str, zones=list, motion_gating=dict)
    labels(document, "allow_labels"), labels(document, "deny_labels")
    [zone(it) for it in document["zones"]]
    assert document["status"] in CAMERA_STATUS, document
    assert 0 <= document["min_score"] <= 1 and document["zone_test"] in {"center", "center+iou"}, document
    gating = document["motion_gating"]
    fields(gating, enabled=bool, roi_native=bool, dilation_px=int, min_area_px=int, cooldown_frames=int, noise_floor=int)
    fields(gating, downscale=(int, float), max_inference_interval_seconds=(int, float))
    fields(gating, adaptive_threshold_factor=(int, float), min_area_roi_percent=(int, float))
    assert gating["min_area_mode"] in {"px", "roi_percent"}, gating
    return document


def step(name):
    print(f"{name}: ok", flush=True)


CAMERA = {
    "camera_uuid": "cam-001",
    "rtsp_url": "rtsp://camera.local/stream",
    "tenant_id": "tenant-1",
    "site_id": "site-1",
    "zones": [
        {
            "zone_id": 1,
            "name": "driveway",
            "kind": "include",
            "priority": 100,
            "polygon": [[100, 100], [700, 100], [700, 500], [200, 500]],
            "allow_labels": None,
            "deny_labels": ["bird"],
            "min_score": None,
        }
    ],
    "motion_gating": {
        "enabled": True,
        "downscale": 0.5,
        "dilation_px": 8,
        "min_area_px": 1500,
        "cooldown_frames": 2,
        "noise_floor": 12,
        "max_inference_interval_seconds": 30,
        "roi_native": False,
        "adaptive_threshold_factor": 0.8,
        "min_area_mode": "roi_percent",
        "min_area_roi_percent": 2.5,
    },
    "allow_labels": None,
    "deny_labels": [],
    "min_score": 0.3,
    "zone_test": "center",
    "iou_threshold": 0.1,
    "status": "offline",
}
RUNNER = {
    "runner_id": "runner-abc123",
    "tenant_id": "tenant-1",
    "site_id": "site-1",
    "deployment_group": "production",
    "deployment_version": "v1.2.3",
    "host": "worker-01.example.com",
    "port": 8080,
    "metrics_port": 9108,
    "capacity": 16,
    "capabilities": ["rtsp", "motion_detection", "zone_filtering"],
}
SITE = "/api/v1/tenants/tenant-1/sites/site-1"


def configuration(client):
    empty = client.request("GET", f"{SITE}/config/version")
    fields(empty, config_version=str, zone_version=str)
    time(empty["last_updated"])
    step("version of an empty site")

    client.request("POST", f"{SITE}/cameras/", CAMERA)  # Answered with 201, which this client does not read.
    given = camera(client.request("GET", "/api/v1/cameras/cam-001/"))
    for name, value in CAMERA.items():
        expected = [{**CAMERA["zones"][0]}] if name == "zones" else value
        got = [{key: it.get(key) for key in expected[0]} for it in given["zones"]] if name == "zones" else given[name]
        assert got == expected, (name, got, expected)
    step("camera as it was written")

    again = camera(client.request("PUT", "/api/v1/cameras/cam-001/", given))
    assert again == given, (again, given)
    again = camera(client.request("PUT", f"{SITE}/cameras/cam-001/", {**given, "allow_labels": [], "status": "online"}))
    assert again["allow_labels"] == [] and again["status"] == "online", again
    assert again["config_version"] != given["config_version"], again
    step("camera written back")

    for index in range(2, 5):
        client.request("POST", f"{SITE}/cameras/", {**CAMERA, "camera_uuid": f"cam-00{index}", "status": "error"})
    names = lambda **query: [camera(it)["camera_uuid"] for it in client.request("GET", f"{SITE}/cameras/", query=query)["cameras"]]
    assert names(status="online") == ["cam-001"], names(status="online")
    assert names(status="error", offset=1, limit=1) == ["cam-003"], names(status="error", offset=1, limit=1)
    assert names(offset=3) == ["cam-004"] and names(offset=9) == [], names()
    step("cameras by status and offset")

    wrong = {"camera_uuid": "a b", "rtsp_url": 7, "min_score": 2, "zone_test": "x", "status": "asleep", "colour": 1}
    wrong["motion_gating"] = {"min_area_mode": "feet", "downscale": 3, "dilation_px": -1}
    wrong["zones"] = [{"zone_id": 1, "name": "", "kind": "both", "priority": 1, "polygon": [], "deny_labels": [""]}]
    assert client.request("POST", f"{SITE}/cameras/", wrong) is None
    named = {it["field"] for it in client.refusal["errors"]}
    missing = {"camera_uuid", "rtsp_url", "min_score", "zone_test", "status", "colour", "motion_gating.min_area_mode"} - named
    missing |= {"motion_gating.downscale", "motion_gating.dilation_px", "zones[0].name", "zones[0].kind"} - named
    missing |= {"zones[0].polygon", "zones[0].deny_labels"} - named
    assert not missing and client.refusal["error_code"] and client.refusal["message"], (missing, client.refusal)
    step("thirteen wrong fields in one answer")

    made = {"zone_id": 7, "name": "yard", "kind": "exclude", "priority": 1, "polygon": [[0, 0], [9, 0], [9, 9]]}
    client.request("POST", f"{SITE}/zones/", {**made, "allow_labels": None, "deny_labels": None, "min_score": None})
    zones = client.request("GET", f"{SITE}/zones/")["zones"]
    changed = zone(client.request("PUT", f"{SITE}/zones/7/", {**zone(zones[0]), "deny_labels": ["cat"]}))
    assert changed["deny_labels"] == ["cat"] and changed["allow_labels"] is None, changed
    step("zones")


def runners(client):
    info = runner(client.request("POST", "/api/v1/runners/register/", RUNNER))
    assert info["runner_id"] == RUNNER["runner_id"] and info["status"] == "active", info
    runner(client.request("POST", "/api/v1/runners/register/", RUNNER))
    step("register, twice")
    assert client.request("PUT", "/api/v1/runners/runner-abc123/heartbeat/", {"current_load": 0, "metrics": {"cpu": 0.5}})
    assert runner(client.request("GET", "/api/v1/runners/runner-abc123/"))["metrics"] == {"cpu": 0.5}
    step("runner heartbeat")
    assert "cam-001" in client.request("GET", "/api/v1/cameras/available/")["cameras"]
    step("available cameras")


def leases(client):
    version = client.request("GET", f"{SITE}/config/version")
    wanted = {"camera_uuid": "cam-001", "runner_id": "runner-abc123", "shard_id": "shard-1", "tenant_id": "tenant-1"}
    wanted |= {"site_id": "site-1", "ttl_seconds": 60}
    wanted |= {"config_version": version["config_version"], "zone_version": version["zone_version"]}
    granted = client.acquire_lease(wanted)
    assert granted["success"] and granted["lease"]["status"] == "active", granted
    held = granted["lease"]["lease_id"]
    assert client.acquire_lease(wanted)["lease"]["lease_id"] == held
    step("acquire, twice")

    client.request("POST", "/api/v1/runners/register/", {**RUNNER, "runner_id": "runner-2", "port": 8081})
    refused = client.acquire_lease({**wanted, "runner_id": "runner-2"})
    assert refused == {"success": False, "lease": None}, refused
    assert client.refusal["error_code"] == "LEASE_ALREADY_HELD", client.refusal
    assert isinstance(client.refusal["retry_after_seconds"], int), client.refusal
    step("refused")

    stats = {"processing_stats": {"fps": 5.5}}
    assert lease(client.request("PUT", f"/api/v1/leases/{held}/renew/", stats))["processing_stats"] == {"fps": 5.5}
    beat = client.request("POST", f"/api/v1/leases/{held}/heartbeat/", {**stats, "camera_status": "online"})
    assert beat["success"] is True, beat
    time(beat["next_heartbeat_due"])
    assert [lease(it)["lease_id"] for it in client.request("GET", "/api/v1/leases/runner/runner-abc123/")] == [held]
    assert lease(client.request("GET", "/api/v1/leases/camera/cam-001/"))["status"] == "active"
    step("renew, heartbeat and lists")

    assert client.request("DELETE", f"/api/v1/leases/{held}/release/")["success"] is True
    assert client.request("PUT", f"/api/v1/leases/{held}/renew/", stats) is None
    step("release")

    events = client.request("GET", "/api/v1/events/", query={"key": "camera:cam-001"})["events"]
    for event in events:
        fields(event, event_id=str, lease_id=str, event_type=str, details=dict, camera_uuid=str, runner_id=str)
        time(event["timestamp"])
    assert [it["event_type"] for it in events] == ["lease_acquired", "lease_released"], events
    step("events")

    assert client.request("DELETE", "/api/v1/runners/runner-abc123/")["leases_released"] == 0
    assert client.request("GET", "/api/v1/runners/runner-abc123/") is None
    step("unregister")


def main():
    client = Client(*sys.argv[1:])
    assert client.request("GET", "/health/") is not None
    step("health")
    configuration(client)
    runners(client)
    leases(client)


main()
