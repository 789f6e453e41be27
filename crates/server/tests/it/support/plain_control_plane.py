"""A control plane that knows only the document's endpoints and fields, and prints its port; with --record also
every request."""

import json
import re
import sys
import uuid
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

RUNNER = {"runner_id", "tenant_id", "site_id", "deployment_group", "deployment_version", "host", "port",
          "capacity", "metrics_port", "capabilities"}
ACQUIRE = {"camera_uuid", "runner_id", "shard_id", "tenant_id", "site_id", "ttl_seconds", "config_version",
           "zone_version"}
CAMERAS = ["cam-1", "cam-2"]
runners, leases = {}, {}


def now():
    return datetime.now(timezone.utc)


def text(at):
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def camera(name):
    return {"camera_uuid": name, "rtsp_url": "rtsp://camera.local/stream", "tenant_id": "t", "site_id": "s"}


def live(name):
    found = [it for it in leases.values() if it["camera_uuid"] == name and it["status"] == "active"]
    return found[0] if found else None


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def handle_any(self):
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length) or b"{}")
        if not self.path.startswith("/api/v1/"):
            return self.answer(404, {"detail": "Not found."})
        path = self.path[len("/api/v1"):]
        if "--record" in sys.argv:
            print(self.command, path, file=sys.stderr, flush=True)
        for method, pattern, work in ROUTES:
            match = re.fullmatch(pattern, path)
            if match and method == self.command:
                return self.answer(*work(body, *match.groups()))
        return self.answer(404, {"detail": "Not found."})

    do_GET = do_POST = do_PUT = do_DELETE = handle_any


def register(body):
    if set(body) - RUNNER:
        return 400, {"detail": "unknown fields"}
    runners[body["runner_id"]] = body
    return 201, {"runner_id": body["runner_id"], "registered_at": text(now()), "status": "active",
                 "assigned_cameras": []}


def acquire(body):
    if set(body) - ACQUIRE:
        return 400, {"detail": "unknown fields"}
    if live(body["camera_uuid"]):
        return 409, {"error_code": "LEASE_ALREADY_HELD", "message": "held"}
    lease = {**body, "lease_id": str(uuid.uuid4()), "acquired_at": text(now()), "status": "active",
             "expires_at": text(now() + timedelta(seconds=60))}
    leases[lease["lease_id"]] = lease
    return 200, lease


def renew(_, name):
    lease = leases.get(name)
    if not lease or lease["status"] != "active":
        return 410, {"error_code": "LEASE_EXPIRED", "message": "gone"}
    return 200, lease


def release(_, name):
    if name in leases:
        leases[name]["status"] = "released"
    return 200, {"success": True}


def by_camera(_, name):
    lease = live(name)
    return (200, lease) if lease else (404, {"detail": "Not found."})


ROUTES = [
    ("POST", r"/runners/register/", register),
    ("PUT", r"/runners/([^/]+)/heartbeat/", lambda body, name: (200, {"success": True})),
    ("GET", r"/tenants/t/sites/s/cameras/", lambda body: (200, [camera(it) for it in CAMERAS])),
    ("GET", r"/tenants/t/sites/s/zones/", lambda body: (200, {"results": []})),
    ("GET", r"/tenants/t/sites/s/config/version",
     lambda body: (200, {"config_version": "c", "zone_version": "z", "last_updated": text(now())})),
    ("POST", r"/leases/acquire/", acquire),
    ("PUT", r"/leases/([^/]+)/renew/", renew),
    ("DELETE", r"/leases/([^/]+)/release/", release),
    ("POST", r"/leases/([^/]+)/heartbeat/", lambda body, name: (200, {"success": True})),
    ("GET", r"/leases/camera/([^/]+)/", by_camera),
]

server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
sys.stdout.close()
server.serve_forever()
