// A runner over HTTP: registers, gives signs of life, takes and gives up cameras as it is told.

/** How often it gives a sign of life, in ms. */
const EVERY = 200;

export class Runner {
  /** `health(camera)` says how a camera does: `working`, `failed`, or anything else. */
  static async start(server, { name, tenant = "acme", site, group, version, capacity = 10, health = () => "working" }) {
    const runner = new Runner();
    Object.assign(runner, { server, name, tenant, site, health, held: new Map(), running: true });
    await server.call("POST", "/api/v1/runners/register", {
      runner_id: name,
      tenant_id: tenant,
      site_id: site,
      deployment_group: group,
      deployment_version: version,
      host: "127.0.0.1",
      port: 8080,
      capacity,
      incarnation: "1",
      ttl_seconds: 3600,
    });
    runner.ended = runner.run();
    return runner;
  }

  async run() {
    while (this.running) {
      try {
        await this.beat();
      } catch (error) {
        // The server may be gone at the end of a test.
        if (this.running) this.fault = error;
      }
      await new Promise((resolve) => setTimeout(resolve, EVERY));
    }
  }

  async beat() {
    const camera_status = Object.fromEntries([...this.held.keys()].map((camera) => [camera, { state: this.health(camera) }]));
    const answer = await this.server.call("PUT", `/api/v1/runners/${this.name}/heartbeat`, { incarnation: "1", current_load: this.held.size, camera_status });
    this.held = new Map(answer.leases.map((lease) => [lease.camera_uuid ?? lease.id, lease]));
    for (const { camera_uuid } of answer.give_up) {
      const lease = this.held.get(camera_uuid);
      if (lease) await this.server.release(lease);
      this.held.delete(camera_uuid);
    }
    for (const camera of answer.take) {
      const body = { camera_uuid: camera.camera_uuid, runner_id: this.name, incarnation: "1", tenant_id: this.tenant, site_id: this.site, ttl_seconds: 600, config_version: camera.config_version };
      // Somebody else may still have it: the next sign of life asks again.
      const lease = await this.server.call("POST", "/api/v1/leases/acquire", body).catch(() => undefined);
      if (lease) this.held.set(camera.camera_uuid, lease);
    }
  }

  async stop() {
    this.running = false;
    await this.ended;
  }
}

/** A site with cameras. */
export async function cameras(server, site, names, tenant = "acme") {
  for (const name of names) await server.call("POST", `/api/v1/tenants/${tenant}/sites/${site}/cameras`, { camera_uuid: name, rtsp_url: `rtsp://10.0.9.1/${name}` });
}
