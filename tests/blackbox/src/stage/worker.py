"""A small worker that follows the contract. Writes a JSON line per camera and tick to $PUBLISHED:
time, worker, camera, token. A tick takes $TICK seconds. Misbehaves as $MISBEHAVE says."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

published = os.environ["PUBLISHED"]
behave = os.environ.get("MISBEHAVE", "")
name = os.environ["LEASEHOLD_WORKER_ID"]
version = os.environ.get("VERSION", "1")
tick = float(os.environ.get("TICK", "0.02"))
config = sys.argv[sys.argv.index("--config") + 1]

if behave == "crash":
    sys.exit(3)
lock = threading.Lock()
cameras = {}
generation = 0
draining = False


def boot_ms():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


out = os.open(published, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def write(**line):
    # One write per line: lines of several workers do not mix.
    os.write(out, (json.dumps({"at": boot_ms(), "worker": name, "pid": os.getpid(), "version": version, **line}) + "\n").encode())


def take(shard):
    global generation
    time.sleep(float(os.environ.get("SLOW_CHANGE", "0")) if generation else 0)
    with lock:
        if shard["generation"] < generation:
            return 409
        generation = shard["generation"]
        cameras.clear()
        cameras.update({it["camera"]["camera_uuid"]: it for it in shard["cameras"]})
        write(set=sorted(cameras), zones={k: len(v["camera"]["zones"]) for k, v in cameras.items()})
    return 202


def work():
    while not draining:
        with lock:
            for camera, it in cameras.items():
                if it["publish"]:
                    write(camera=camera, token=it["token"])
        time.sleep(tick)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        if self.path == "/healthz":
            return self.answer(503 if behave == "sick" else 200, {})
        if self.path == "/ready":
            ready = behave != "never-ready"
            return self.answer(200 if ready else 503, {"ready": ready, "cameras": f"{len(cameras)}/{len(cameras)}"})
        self.answer(404, {})

    def do_POST(self):
        global draining
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/cameras":
            if behave == "rigid":
                return self.answer(404, {})
            if behave == "deaf":
                time.sleep(3600)
            return self.answer(take(json.loads(body)), {})
        if self.path in ("/drain", "/terminate"):
            self.answer(202, {})
            if behave != "stubborn":
                with lock:
                    draining = True
                    write(drained=True)
                threading.Timer(0.05, lambda: os._exit(0)).start()
            return None
        self.answer(404, {})


if behave == "grandchild":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.Popen(["setsid", "sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"])
time.sleep(float(os.environ.get("SLOW_START", "0")))
with open(config) as file:
    take(json.load(file))
print("worker is up", flush=True)
threading.Thread(target=work, daemon=True).start()
ThreadingHTTPServer(("127.0.0.1", int(os.environ["LEASEHOLD_WORKER_PORT"])), Handler).serve_forever()
