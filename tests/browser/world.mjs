// A small installation with something of everything: what the pages are looked at with.

import { execFileSync } from "node:child_process";
import { target, until } from "./kit.mjs";
import { Runner, cameras as addCameras } from "./runner.mjs";

const SITE = "/api/v1/tenants/acme/sites/north";

export async function populate(server) {
  await leases(server);
  await cameras(server);
  await deployments(server);
  return pollers(server);
}

/** One deployment in its middle, one that went back. Its runners are registered for an hour. */
async function deployments(server) {
  const group = async (site, group, prefix, size, health, end) => {
    const names = Array.from({ length: size }, (_, place) => `${prefix}-${place + 1}`);
    await addCameras(server, site, names);
    const before = await Runner.start(server, { name: `${site}-1`, site, group, version: "1.8.0", capacity: 20 });
    await until("the old version has all", () => before.held.size === size);
    // First the deployment: until there is one, another runner of the group would get its share of the cameras.
    await server.call("POST", "/api/v1/deployments", { tenant_id: "acme", site_id: site, deployment_group: group, to_version: "1.9.0", step: 4, health_timeout_seconds: 3600 });
    const after = await Runner.start(server, { name: `${site}-2`, site, group, version: "1.9.0", capacity: 20, health });
    await until(`the deployment of ${group}`, async () => end(await server.call("GET", `/api/v1/deployments/acme/${site}/${group}`)));
    await Promise.all([before.stop(), after.stop()]);
  };
  // The second step does not get healthy.
  const second = (camera) => (Number(camera.split("-").at(-1)) > 4 ? "starting" : "working");
  await group("south", "doors", "door", 9, second, (it) => it.cameras_new === 8 && it.note.startsWith("waiting for"));
  const third = (camera) => (camera === "belt-3" ? "failed" : "working");
  await group("west", "conveyors", "belt", 5, third, (it) => it.state === "rolled_back" && it.cameras_old === 5);
}

async function leases(server) {
  const jobs = ["backup/db-1", "backup/db-2", "billing/close-month", "report/daily", "report/weekly", "index/products", "index/customers", "mail/digest"];
  for (const [place, job] of jobs.entries()) await server.acquire(`job:${job}`, `batch-${(place % 3) + 1}`, { ttl_seconds: 120 + 60 * place });
  await server.acquire("leader:scheduler", "scheduler-b", { ttl_seconds: 30 });
  await server.acquire("device:scope-4", "lab-2", { ttl_seconds: 1, on_outage: { policy: "hold", grace_seconds: 3000 } });
  // A key that changed hands: released, expired, revoked, and held again, with two who wait.
  const key = "deploy:production";
  await server.release(await server.acquire(key, "ci-runner-7", { incarnation: "r7" }));
  await server.acquire(key, "ci-runner-9", { incarnation: "r9", ttl_seconds: 1 });
  await until("it expires", async () => (await server.call("GET", "/api/v1/leases?kind=deploy")).leases.length === 0);
  const third = await server.acquire(key, "ci-runner-7", { incarnation: "r7b" });
  await server.call("POST", `/api/v1/leases/${third.lease_id}/revoke`, { reason: "rollback of build 4711" });
  await server.acquire(key, "ci-runner-12", { incarnation: "r12", ttl_seconds: 900 });
  for (const name of ["ci-runner-3", "ci-runner-5"]) {
    // Nobody awaits these: they wait in the queue.
    server.acquire(key, name, { wait_seconds: 600 }).catch(() => {});
    await until(`${name} waits`, async () => {
      const { leases } = await server.call("GET", "/api/v1/leases?status=pending&kind=deploy");
      return leases.some((lease) => lease.holder === name);
    });
  }
}

const box = (x, y, w, h) => [
  [x, y],
  [x + w, y],
  [x + w, y + h],
  [x, y + h],
];

async function cameras(server) {
  const names = ["gate", "yard", "dock-1", "dock-2", "hall-a", "hall-b", "roof", "parking"];
  for (const [place, name] of names.entries()) {
    const zones = [
      { zone_id: 1, name: "Entrance", kind: "include", polygon: [[180, 420], [520, 300], [700, 520], [380, 650]] },
      { zone_id: 2, name: "Street", kind: "exclude", polygon: box(820, 60, 380, 190) },
    ];
    const camera = { camera_uuid: `cam-${name}`, rtsp_url: `rtsp://10.0.4.${10 + place}/stream1`, zones: place % 3 === 0 ? zones : [] };
    if (name === "roof") camera.required_capabilities = ["thermal"];
    await server.call("POST", `${SITE}/cameras`, camera);
  }
  for (const [place, name] of ["edge-1", "edge-2", "edge-3"].entries()) {
    await server.call("POST", "/api/v1/runners/register", {
      runner_id: name,
      tenant_id: "acme",
      site_id: "north",
      deployment_group: place === 2 ? "green" : "blue",
      deployment_version: place === 2 ? "2.5.0" : "2.4.1",
      host: `10.0.4.${100 + place}`,
      port: 8080,
      capacity: 4,
      incarnation: "1",
      ttl_seconds: 3600,
    });
  }
  for (const name of ["edge-1", "edge-2", "edge-3"]) {
    const answer = await server.call("PUT", `/api/v1/runners/${name}/heartbeat`, { incarnation: "1" });
    for (const [place, camera] of answer.take.entries()) {
      const version = place === 0 && name === "edge-1" ? "0".repeat(64) : camera.config_version;
      const body = { camera_uuid: camera.camera_uuid, runner_id: name, incarnation: "1", tenant_id: "acme", site_id: "north", ttl_seconds: 1800, config_version: version };
      const lease = await server.call("POST", "/api/v1/leases/acquire", body);
      if (camera.camera_uuid === "cam-gate") await server.picture("cam-gate", lease, [1280, 720], scene());
    }
  }
}

/** What a camera at a gate might see: a house, a door, a street, and somebody who comes. */
function scene() {
  const boxes = [
    ["0:0:640:26", "c3c9cd"],
    ["390:26:250:100", "55595c"],
    ["390:74:250:3", "c8cacb"],
    ["390:124:250:7", "a5a9ab"],
    ["430:44:58:20", "2c3033"],
    ["440:34:34:12", "3b4145"],
    ["520:90:66:24", "d8dadb"],
    ["532:78:38:14", "8f989d"],
    ["0:14:390:136", "9b948b"],
    ["0:14:390:9", "4f5254"],
    ["34:46:46:36", "3d474e"],
    ["108:46:46:36", "46525a"],
    ["306:46:46:36", "3d474e"],
    ["198:58:72:92", "2e3234"],
    ["232:58:3:92", "70767a"],
    ["186:150:96:6", "b3b6b7"],
    ["216:206:16:54", "26292b"],
    ["219:192:10:12", "a08d80"],
    ["470:240:120:60", "7c6a50"],
    ["470:240:120:8", "94815f"],
  ];
  const drawn = boxes.map(([place, colour]) => `drawbox=${place}:0x${colour}:fill`).join(",");
  const ground = "gradients=s=640x360:c0=0x858a8d:c1=0x5d6265:x0=0:y0=120:x1=0:y1=360:n=2";
  return execFileSync("ffmpeg", ["-v", "error", "-f", "lavfi", "-i", ground, "-frames:v", "1", "-vf", `${drawn},gblur=sigma=1,vignette=a=PI/7,format=gray`, "-c:v", "png", "-f", "image2pipe", "-"]);
}

/** Real pollers over HTTP; the names of their processes by node. */
export async function pollers(server, names = ["poller-a", "poller-b", "poller-c"], targets = 14) {
  const polled = await target();
  const list = Array.from({ length: targets }, (_, place) => ({ id: `meter-${place + 1}`, isPaused: place === 4 }));
  const file = server.file("targets.json", JSON.stringify(list));
  const children = new Map();
  for (const name of names) {
    const config = server.file(
      `${name}.yaml`,
      `poll:\n  url: '${polled.url}'\n  targets_file: '${file}'\n  interval_seconds: 1\n  allow_short_intervals: true\n  timeout_seconds: 1\n  lease: {ttl: 2s, name: '${name}', capacity: 10}\n`,
    );
    children.set(name, server.spawn(["poll", "--config", config]));
  }
  const wanted = list.filter((it) => !it.isPaused).length;
  await until("the targets are shared", async () => {
    const { nodes } = await server.call("GET", "/api/v1/nodes");
    for (const child of children.values()) if (child.exitCode !== null) throw new Error(child.log);
    return nodes.length === names.length && nodes.reduce((sum, node) => sum + node.targets.length, 0) >= wanted;
  });
  return children;
}
