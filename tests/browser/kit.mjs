// What the browser tests share: a real server process, a real Chromium, and the API from outside.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { createServer as createHttp } from "node:http";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after } from "node:test";

const require = createRequire(new URL("../../ui/package.json", import.meta.url));
const { chromium } = require("playwright-core");
export const AXE = require.resolve("axe-core/axe.min.js");

// A development certificate is trusted by nobody; for the calls of these tests that does not matter.
process.removeAllListeners("warning");
process.env.NODE_TLS_REJECT_UNAUTHORIZED = "0";

const ROOT = new URL("../..", import.meta.url).pathname;
const BINARY = process.env.LEASEHOLD_BINARY ?? join(ROOT, "target/debug/leasehold");
/** How long something may take on a busy machine, in ms. */
export const SOON = 60_000;

// Whatever a test left behind, because it failed or for want of a better place, ends with its file.
const running = new Set();
const browsers = new Set();
const endAll = () => {
  for (const child of running) child.kill("SIGKILL");
};
process.on("exit", endAll);
after(async () => {
  endAll();
  await Promise.all([...browsers].map((browser) => browser.close()));
});

export async function freePort() {
  const server = createServer();
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return port;
}

/** Polls until `check` gives something true. */
export async function until(what, check, ms = SOON) {
  const end = Date.now() + ms;
  let last;
  for (;;) {
    try {
      const found = await check();
      if (found) return found;
    } catch (error) {
      last = error;
    }
    if (Date.now() > end) throw new Error(`${what} did not happen${last ? `: ${last.message}` : ""}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

/** A server process with a folder of its own. */
export class Server {
  static async start({ tls = false, env = {}, keys = [], store = "embedded" } = {}) {
    assert.ok(existsSync(BINARY), `${BINARY} is missing: cargo build -p leasehold`);
    const server = new Server();
    server.folder = mkdtempSync(join(tmpdir(), "leasehold-page-"));
    server.tls = tls;
    server.env = env;
    if (keys.length > 0) {
      // With keys of its own a server makes none.
      const scopes = ["leases:admin", "runners:admin", "v3:admin", "credentials:admin"];
      server.key = "administrator-key-0123456789";
      server.env = { ...env, LEASEHOLD_TOKENS: JSON.stringify([{ token: server.key, scopes }, ...keys]) };
    }
    server.store = store === "memory" ? "memory:" : `embedded:${join(server.folder, "store")}`;
    for (let attempt = 1; ; attempt += 1) {
      server.port = await freePort();
      server.url = `${tls ? "https" : "http"}://127.0.0.1:${server.port}`;
      try {
        await server.run();
        break;
      } catch (error) {
        // Somebody else may take a free port first.
        if (attempt === 3 || !/in use/i.test(server.log)) throw error;
      }
    }
    server.key ??= readFileSync(join(server.folder, "data/admin.token"), "utf8").trim();
    return server;
  }

  async run() {
    const args = ["serve", "--listen", `127.0.0.1:${this.port}`, "--store", this.store, "--data-dir", join(this.folder, "data")];
    if (this.tls) args.push("--tls-self-signed");
    this.log = "";
    this.child = spawn(BINARY, args, {
      env: { PATH: process.env.PATH, HOME: this.folder, LEASEHOLD_LOG: "warn", ...this.env },
      stdio: ["ignore", "pipe", "pipe"],
    });
    const child = this.child;
    running.add(child);
    child.on("exit", () => running.delete(child));
    for (const stream of [child.stdout, child.stderr]) stream.on("data", (text) => (this.log += text));
    // One that ended is not waited for.
    const ended = () => child.exitCode !== null || child.signalCode !== null;
    await until(`the server at ${this.url}`, async () => ended() || (await this.fetch("/readyz")).ok);
    assert.ok(!ended(), this.log);
  }

  async fetch(path, init = {}) {
    return fetch(`${this.url}${path}`, { ...init, signal: AbortSignal.timeout(init.timeout ?? 20_000) });
  }

  /** A call with the administrator's key. */
  async call(method, path, body, timeout) {
    const init = { method, timeout, headers: { authorization: `Bearer ${this.key}` } };
    if (body !== undefined) {
      init.headers["content-type"] = "application/json";
      init.body = JSON.stringify(body);
    }
    const response = await this.fetch(path, init);
    const text = await response.text();
    const json = text ? JSON.parse(text) : undefined;
    assert.ok(response.ok, `${method} ${path}: ${response.status} ${text}`);
    return json;
  }

  acquire(key, holder, more = {}) {
    const colon = key.indexOf(":");
    return this.call("POST", "/api/v1/leases/acquire", { kind: key.slice(0, colon), id: key.slice(colon + 1), holder, ttl_seconds: 60, incarnation: "1", ...more }, (more.wait_seconds ?? 0) * 1000 + 20_000);
  }

  release(lease) {
    return this.call("DELETE", `/api/v1/leases/${lease.lease_id}/release`);
  }

  /** Sends a still of a camera as its holder does; `size` is that of the camera's own picture. */
  picture(camera, { token }, [width, height], body) {
    const headers = { authorization: `Bearer ${this.key}`, "content-type": "application/octet-stream" };
    return this.fetch(`/api/v1/cameras/${camera}/picture?token=${token}&width=${width}&height=${height}`, { method: "PUT", headers, body });
  }

  signal(name) {
    this.child.kill(name);
  }

  async kill() {
    const child = this.child;
    if (child.exitCode !== null || child.signalCode !== null) return;
    const gone = new Promise((resolve) => child.once("exit", resolve));
    child.kill("SIGKILL");
    await gone;
  }

  async stop() {
    await this.kill();
    rmSync(this.folder, { recursive: true, force: true });
  }

  /** Another process of the same binary, for example a poller. */
  spawn(args, env = {}) {
    const child = spawn(BINARY, args, {
      env: { PATH: process.env.PATH, HOME: this.folder, LEASEHOLD_URL: this.url, LEASEHOLD_API_TOKEN: this.key, ...env },
      stdio: ["ignore", "ignore", "pipe"],
    });
    child.log = "";
    child.stderr.on("data", (text) => (child.log += text));
    running.add(child);
    child.on("exit", () => running.delete(child));
    return child;
  }

  file(name, text) {
    const path = join(this.folder, name);
    writeFileSync(path, text);
    return path;
  }
}

/** Answers every request with 200: what pollers poll. */
export async function target() {
  const server = createHttp((_, response) => response.end("{}"));
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  server.unref();
  return { url: `http://127.0.0.1:${server.address().port}/{id}`, close: () => server.close() };
}

export async function launch() {
  const browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: [
      "--no-sandbox",
      "--headless",
      "--disable-gpu",
      "--disable-quic",
      "--no-first-run",
      "--disable-background-networking",
      "--disable-component-update",
      "--disable-sync",
      "--disable-dev-shm-usage",
      "--autoplay-policy=no-user-gesture-required",
    ],
  });
  browsers.add(browser);
  return browser;
}

/** A window of its own, with everything it complains about written down. */
export async function open(browser, server, options = {}) {
  const { login = true, ...context } = options;
  const window = await browser.newContext({ locale: "en-US", viewport: { width: 1360, height: 860 }, reducedMotion: "reduce", ignoreHTTPSErrors: true, ...context });
  const page = await window.newPage();
  page.setDefaultTimeout(SOON);
  page.complaints = [];
  page.foreign = [];
  page.on("console", (message) => message.type() === "error" && page.complaints.push(message.text()));
  page.on("pageerror", (error) => page.complaints.push(String(error)));
  page.on("request", (request) => {
    const url = request.url();
    if (!url.startsWith(server.url) && !/^(blob|data):/.test(url)) page.foreign.push(url);
  });
  await page.goto(`${server.url}/`);
  if (login) await logIn(page, server.key);
  return page;
}

export async function logIn(page, key) {
  await page.getByLabel("API key").fill(key);
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByRole("navigation", { name: "Pages" }).waitFor();
}

/** Goes to a route of the page. */
export async function visit(page, route) {
  await page.evaluate((hash) => (location.hash = hash), route);
}
