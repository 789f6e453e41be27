#!/usr/bin/env python3
"""A worker for `leasehold manager` in Python, standard library only.

It does everything that the manager expects of a worker and leaves the actual work, `look`, to you. The one
rule that matters: before anything is published about a camera, `may_publish` is asked. It knows until when
the manager's lease lasts, and nothing is sent past that moment; what is sent carries the fencing token.
In manager.yaml: `worker: {command: [python3, examples/worker.py]}`."""
import argparse, contextlib, json, os, signal, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def boot_ms():  # The clock that deadlines count on: it does not jump, and it counts while the machine sleeps.
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1000)


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file: return file.read().rsplit(") ", 1)[1][0] not in "ZX"
    except OSError:
        return False


def look(camera):  # The work: replace this. Whatever is returned is published.
    return {"seen": camera["camera_uuid"]}


class Camera(threading.Thread):
    """One camera under one fencing token."""
    def __init__(self, worker, entry):
        super().__init__(daemon=True)
        self.worker, self.entry = worker, entry
        self.name, self.token = entry["camera"]["camera_uuid"], entry["token"]
        self.stopping = threading.Event()
        self.working, self.last_frame = False, None

    def may_publish(self):
        fence = self.worker.fence(self.name) or self.entry
        ours = not self.stopping.is_set() and fence["token"] == self.token
        return ours and fence.get("publish", True) and boot_ms() < fence["deadline_boot_ms"]

    def publish(self, event, **fields):
        message = {"event": event, "camera_uuid": self.name, "token": self.token, "lease_id": self.entry["lease_id"],
                   "at": int(time.time() * 1000), "last_frame_at": self.last_frame, **fields}
        with self.worker.output:
            if self.may_publish(): print(json.dumps(message), flush=True)

    def run(self):
        self.publish("started")
        while not self.stopping.wait(self.worker.interval):
            if self.may_publish():
                result = look(self.entry["camera"])
                self.working, self.last_frame = True, int(time.time() * 1000)
                self.publish("result", result=result)

    def stop(self):  # Nothing is published once this returns.
        self.publish("stopped")
        with self.worker.output: self.stopping.set()


class Worker:
    def __init__(self):
        self.interval = float(os.environ.get("WORKER_INTERVAL_SECONDS", "1"))
        self.fence_file = os.environ.get("LEASEHOLD_FENCE_FILE")
        self.cameras, self.generation = {}, 0
        self.changing, self.output = threading.Lock(), threading.Lock()
        self.ended = threading.Event()

    def fence(self, name):
        """What the manager wrote last about this camera. One that is missing is not ours."""
        if not self.fence_file: return None
        with open(self.fence_file) as file: fences = json.load(file)["cameras"]
        return fences.get(name, {"token": 0, "deadline_boot_ms": 0})

    def apply(self, shard):
        """Makes this the full set of cameras: drops, changes and adds. False for one that is too old."""
        with self.changing:
            if shard.get("generation", 0) < self.generation or self.ended.is_set():
                return False
            self.generation = shard.get("generation", 0)
            wanted = {entry["camera"]["camera_uuid"]: entry for entry in shard["cameras"]}
            for name, camera in list(self.cameras.items()):
                if name not in wanted or wanted[name]["token"] != camera.token:
                    self.cameras.pop(name).stop()
            for name, entry in wanted.items():
                if name not in self.cameras:
                    self.cameras[name] = Camera(self, entry)
                    self.cameras[name].start()
                self.cameras[name].entry = entry
            return True

    def drain(self):
        self.apply({"generation": self.generation, "cameras": []})
        self.ended.set()

    def ready(self):
        states = [camera.working for camera in list(self.cameras.values())]
        return {"ready": sum(states) * 100 >= len(states) * 80, "cameras": f"{sum(states)}/{len(states)}"}


class Handler(BaseHTTPRequestHandler):
    log_message = lambda *_: None

    def reply(self, status, body=None):
        data = json.dumps(body).encode() if isinstance(body, dict) else (body or "").encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        ready = worker.ready()
        figures = f"# TYPE worker_cameras gauge\nworker_cameras {len(worker.cameras)}\n# EOF\n"
        answers = {"/healthz": (200, "ok\n"), "/ready": (200 if ready["ready"] else 503, ready), "/metrics": (200, figures)}
        self.reply(*answers.get(self.path, (404, "")))

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path in ("/drain", "/terminate"):
            self.reply(202)
            return (worker.drain if self.path == "/drain" else worker.ended.set)()
        try:
            self.reply(404 if self.path != "/cameras" else 202 if worker.apply(json.loads(body)) else 409)
        except (AttributeError, ValueError, KeyError, TypeError):
            self.reply(400)


class Metrics(Handler):  # On a port of their own, with nothing else there.
    def parse_request(self):
        return super().parse_request() and (self.path == "/metrics" or self.reply(404))


def listen(port, handler):
    server = ThreadingHTTPServer(("127.0.0.1", int(port)), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()


parser = argparse.ArgumentParser()
for flag in ("--config", "--runner-id", "--shard-id", "--manager-pid"):
    parser.add_argument(flag, required=True)
options = parser.parse_args()
worker = Worker()
signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=worker.drain).start())
with open(options.config) as file: worker.apply(json.load(file))
listen(os.environ["LEASEHOLD_WORKER_PORT"], Handler)
metrics_port = os.environ.get("LEASEHOLD_WORKER_METRICS_PORT")
while not worker.ended.wait(0.5):
    if not is_alive(options.manager_pid): sys.exit(1)  # The manager is gone, and with it the leases.
    with contextlib.suppress(OSError):  # A worker that is being replaced may have the port for a moment.
        metrics_port = metrics_port and listen(metrics_port, Metrics)
