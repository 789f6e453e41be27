// Every page: opened, looked at by axe, photographed, and with an API key that may only look.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdirSync, statSync } from "node:fs";
import { after, before, test } from "node:test";
import { AXE, Server, launch, logIn, open, until, visit } from "./kit.mjs";
import { populate } from "./world.mjs";

/** Photographs are always made; those in the documentation are renewed on request. */
const SHOTS = new URL(process.env.LEASEHOLD_SCREENSHOTS ? "../../docs/screenshots/" : "../../target/screenshots/", import.meta.url).pathname;
const READER = "reader-key-0123456789abcdef";
const WIDE = { width: 1360, height: 860 };
const NARROW = { width: 390, height: 844 };

let server;
let browser;
let nodes;
before(async () => {
  const keys = [{ token: READER, scopes: ["leases:read", "runners:read", "v3:read"] }];
  [server, browser] = await Promise.all([Server.start({ keys }), launch()]);
  nodes = await populate(server);
});
after(() => server?.stop());

/** The pages: their routes, and what shows that they are there. */
const PAGES = {
  overview: ["#/overview", ".plots"],
  leases: ["#/leases", ".vrow .token"],
  lease: ["#/lease/deploy%3Aproduction", ".timeline"],
  nodes: ["#/nodes", ".matrix .dot"],
  deployments: ["#/deployments", '[data-group="doors"]'],
  deployment: ["#/deployment/acme%2Fsouth%2Fdoors", ".timeline"],
  cameras: ["#/cameras", ".table tbody tr"],
  camera: ["#/camera/cam-gate", ".zone polygon"],
  sessions: ["#/sessions", ".player"],
  events: ["#/events", "[data-revision]"],
};

async function show(page, name) {
  const [route, proof] = PAGES[name];
  await visit(page, route);
  await page.locator(proof).first().waitFor();
  // Everything that is asked for has come.
  await until(`${name} is loaded`, async () => (await page.getByText("Loading …").count()) === 0);
}

async function axe(page, name) {
  await page.addScriptTag({ path: AXE }).catch(() => {});
  const found = await page.evaluate(async () => {
    const { violations } = await globalThis.axe.run(document, { resultTypes: ["violations"] });
    return violations.map(({ id, impact, nodes }) => ({ id, impact, nodes: nodes.map((node) => `${node.target}: ${node.failureSummary}`).slice(0, 3) }));
  });
  const serious = found.filter(({ impact }) => impact === "serious" || impact === "critical");
  assert.deepEqual(serious, [], `${name}: ${JSON.stringify(serious, null, 1)}`);
}

for (const [scheme, size] of [
  ["light", WIDE],
  ["dark", NARROW],
]) {
  test(`every page opens, ${scheme}, ${size.width} px wide, without complaints`, async () => {
    // axe is put into the page by the browser itself, past the page's policy.
    const page = await open(browser, server, { colorScheme: scheme, viewport: size, bypassCSP: true });
    for (const name of Object.keys(PAGES)) {
      await show(page, name);
      await axe(page, `${name} in ${scheme}`);
      const wider = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
      assert.ok(wider <= 0, `${name} is ${wider} px wider than the window`);
    }
    assert.deepEqual(page.complaints, []);
    assert.deepEqual(page.foreign, []);
    await page.context().close();
  });
}

test("photographs of every page", async () => {
  mkdirSync(SHOTS, { recursive: true });
  const wide = await open(browser, server, { viewport: WIDE });
  const narrow = await open(browser, server, { viewport: NARROW });
  const kept = [];
  const shoot = async (page, file) => {
    await page.evaluate(() => document.activeElement?.blur());
    await page.mouse.move(0, 0);
    const picture = await page.screenshot();
    // 256 colours are enough for a page, and a third of the size.
    execFileSync("ffmpeg", ["-v", "error", "-y", "-f", "png_pipe", "-i", "-", "-vf", "split[a][b];[a]palettegen=stats_mode=single[p];[b][p]paletteuse=dither=none", `${SHOTS}${file}.png`], { input: picture });
    kept.push(file);
  };
  await visit(wide, "#/sessions");
  await wide.getByLabel("Service").fill("1:0:19:132F:3EF:1:C00000:0:0:0:");
  await wide.getByLabel("Profile").selectOption("virtual");
  await wide.getByRole("button", { name: "Start", exact: true }).click();
  await until("the picture moves", () => wide.evaluate(() => document.getElementById("video").currentTime > 3));
  await until("a heartbeat is shown", async () => Number(await wide.locator("[data-beats]").getAttribute("data-beats")) > 0);
  const schemes = ["light", "dark"];
  for (const name of ["sessions", ...Object.keys(PAGES).filter((it) => it !== "sessions")]) {
    for (const [page, suffix] of [
      [wide, ""],
      [narrow, "-narrow"],
    ]) {
      // The session that plays in the wide window stays there.
      if (page !== wide || name !== "sessions") await show(page, name);
      for (const colorScheme of schemes) {
        await page.emulateMedia({ colorScheme });
        await shoot(page, `${name}${suffix}-${colorScheme}`);
      }
    }
  }
  for (const file of kept) {
    const { size } = statSync(`${SHOTS}${file}.png`);
    assert.ok(size < 150_000, `${file}: ${size} bytes`);
  }
  await wide.context().close();
  await narrow.context().close();
});

test("a wrong key is refused in words, the right one leads to where one wanted to go", async () => {
  const page = await open(browser, server, { login: false });
  await page.goto(`${server.url}/#/events`);
  await page.getByLabel("API key").fill("not-a-key");
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByText("This API key is not known here.").waitFor();
  assert.match(await page.locator(".login-card").textContent(), /admin\.token/);
  await logIn(page, server.key);
  await page.locator("[data-revision]").first().waitFor();
  assert.ok(page.url().endsWith("#/events"));
  await page.getByRole("button", { name: "Log out" }).click();
  await page.getByLabel("API key").waitFor();
  await page.context().close();
});

test("a key that may only look sees everything and no buttons", async () => {
  const page = await open(browser, server, { login: false });
  await logIn(page, READER);
  await page.getByText("Read-only").waitFor();
  await show(page, "lease");
  assert.equal(await page.getByRole("button", { name: /Revoke/ }).count(), 0);
  await show(page, "nodes");
  assert.equal(await page.getByRole("button", { name: /Cordon|Drain/ }).count(), 0);
  await show(page, "camera");
  assert.equal(await page.getByRole("button", { name: /^(Save|Remove …)$/ }).count(), 0);
  assert.ok(await page.getByLabel("Source").isDisabled());
  await show(page, "sessions");
  assert.equal(await page.getByRole("button", { name: "Start" }).count(), 0);
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});

test("the overview says what is owned, unowned, in jeopardy, waited for and lost, and leads there", async () => {
  const page = await open(browser, server);
  const stat = (name) => page.locator(".stat", { has: page.getByText(name, { exact: true }) });
  const says = (name, check) => until(`${name} is right`, async () => check(Number((await stat(name).locator(".stat-value").textContent()).replace(",", ""))));
  await says("Owned", async (value) => value === (await server.call("GET", "/api/v1/overview")).leases.active);
  await says("Unowned", (value) => value >= 1);
  await says("In jeopardy", (value) => value >= 1);
  await says("Waiting", (value) => value === 2);
  await says("Lost in the last hour", (value) => value >= 3);
  const card = (title) => page.locator(".card", { has: page.getByRole("heading", { name: title }) });
  await card("Unowned").getByText("camera:cam-roof").waitFor();
  await card("Latest losses").getByText("rollback of build 4711").waitFor();
  await card("Health").getByText(/^Ready, version \d/).waitFor();
  await card("Health").getByText("A grant survives a crash of the machine.").waitFor();
  await stat("In jeopardy").click();
  await page.locator(".vrow").getByText("device:scope-4").waitFor();
  await page.locator(".vrow").getByText("in jeopardy").waitFor();
  // What nobody has is plain on the map, too.
  await show(page, "nodes");
  await page.locator(".matrix tr", { has: page.getByText("cam-roof", { exact: true }) }).getByText("Unowned").waitFor();
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});

test("the colours are chosen with a button, and stay chosen", async () => {
  const page = await open(browser, server, { colorScheme: "light" });
  const back = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const light = await back();
  await page.getByRole("button", { name: "Colours: as the system. Change" }).click();
  await page.getByRole("button", { name: "Colours: light. Change" }).click();
  await page.getByRole("button", { name: "Colours: dark. Change" }).waitFor();
  assert.notEqual(await back(), light);
  await page.reload();
  await page.getByRole("button", { name: "Colours: dark. Change" }).waitFor();
  assert.notEqual(await back(), light);
  await page.context().close();
});

test("a killed node's targets move to the others", async () => {
  const page = await open(browser, server);
  await show(page, "nodes");
  const cellOf = (target) => page.locator(".matrix tr", { has: page.getByText(target, { exact: true }) }).locator(".matrix-owner");
  const cell = await until("it has a target, and the page shows it", async () => {
    const { nodes } = await server.call("GET", "/api/v1/nodes");
    const target = nodes.find((node) => node.name === "poller-a")?.targets[0];
    return target && (await cellOf(target.id).textContent()).includes("poller-a") && cellOf(target.id);
  });
  nodes.get("poller-a").kill("SIGKILL");
  await until("another one has it", async () => /poller-[bc]/.test(await cell.textContent()));
  await page.locator(".tile", { hasText: "poller-a" }).waitFor({ state: "detached" });
  await page.getByText("Every target has an owner").waitFor();
  await page.context().close();
});

test("a runner is cordoned, drained and uncordoned", async () => {
  const page = await open(browser, server);
  await show(page, "nodes");
  const row = page.locator('[data-runner="edge-2"]');
  const order = async (button, confirm, word) => {
    await row.getByRole("button", { name: button }).click();
    await page.getByRole("dialog").getByRole("button", { name: confirm }).click();
    await row.getByText(word, { exact: true }).waitFor();
  };
  await order("Cordon", "Cordon", "Cordoned");
  await order("Drain …", "Drain", "Draining");
  assert.equal((await server.call("GET", "/api/v1/runners/edge-2")).status, "draining");
  await order("Uncordon", "Uncordon", "Active");
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});

test("a camera is added, its zone drawn and checked while drawing, and changed by two people", async () => {
  const page = await open(browser, server);
  await show(page, "cameras");
  await page.getByRole("link", { name: "Add a camera" }).click();
  await page.getByLabel("Name", { exact: true }).fill("cam new");
  await page.getByText("1 to 255 letters, digits").waitFor();
  await page.getByLabel("Name", { exact: true }).fill("cam-new");
  await page.getByLabel("Source").fill("10.0.0.7/stream");
  await page.getByText("An rtsp, rtsps, http").waitFor();
  await page.getByLabel("Source").fill("rtsp://10.0.0.7/stream");
  await page.getByRole("button", { name: "Add a zone" }).click();
  await page.getByText("An outline needs 3 points; this one has 0.").waitFor();
  const canvas = page.locator(".canvas");
  const draw = async (...points) => {
    const box = await canvas.boundingBox();
    for (const [x, y] of points) await page.mouse.click(box.x + box.width * x, box.y + box.height * y);
  };
  await draw([0.2, 0.2], [0.8, 0.8], [0.8, 0.2], [0.2, 0.8]);
  await page.getByText(/crosses the one after/).waitFor();
  assert.ok(await page.getByRole("button", { name: "Add", exact: true }).isDisabled());
  await page.getByRole("button", { name: "Remove last point" }).click();
  await page.getByText(/crosses the one after/).waitFor({ state: "detached" });
  await page.getByRole("button", { name: "Add", exact: true }).click();
  await page.getByRole("heading", { name: "cam-new" }).waitFor();
  const path = "/api/v1/tenants/acme/sites/north/cameras/cam-new";
  const saved = await server.call("GET", path);
  assert.equal(saved.zones[0].polygon.length, 3);
  const [x, y] = saved.zones[0].polygon[0];
  assert.ok(Math.abs(x - 256) < 8 && Math.abs(y - 144) < 8, `${x}, ${y}: pixels of a picture of 1280 by 720`);
  // Two people change it: the second one is told, and decides.
  await page.getByLabel("Least score").fill("0.6");
  await server.call("PUT", path, { min_score: 0.9 });
  await page.getByText("Somebody else changed this camera").first().waitFor();
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await page.getByRole("button", { name: "Save mine over it" }).click();
  await until("mine is saved", async () => (await server.call("GET", path)).min_score === 0.6);
  await page.getByRole("button", { name: "Remove …" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Remove" }).click();
  await page.getByRole("link", { name: "cam-gate" }).waitFor();
  await page.context().close();
});

test("the keyboard is enough", async () => {
  const page = await open(browser, server);
  // The second key must follow soon, which a busy machine may fail to do.
  await until("the page of leases is there", async () => {
    await page.keyboard.press("g");
    await page.keyboard.press("l");
    return (await page.locator(".lease-list").count()) > 0;
  });
  await page.locator(".vrow").first().waitFor();
  await page.keyboard.press("/");
  assert.equal(await page.evaluate(() => document.activeElement.type), "search");
  await page.keyboard.type("deploy");
  await until("it is found", async () => {
    const keys = await page.locator(".vrow .key").allTextContents();
    return keys.length > 0 && keys.every((key) => key === "deploy:production");
  });
  // From the search to the first link in the list.
  for (let step = 0; step < 20; step += 1) {
    await page.keyboard.press("Tab");
    if (await page.evaluate(() => document.activeElement.matches(".vrow .key"))) break;
  }
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "deploy:production" }).waitFor();
  await page.context().close();
});

test("replicas are listed; different versions are pointed out; one that dies is gone", async () => {
  const page = await open(browser, server);
  const own = page.locator('[data-replica][data-status="healthy"]');
  await own.getByText("expires leases for all").waitFor();
  assert.equal(await page.locator("[data-replica]").count(), 1);
  // Another server announces itself and gives signs of life, as servers do.
  const key = "replica:elsewhere:8740/00000000";
  const lease = await server.acquire(key, "elsewhere:8740", { ttl_seconds: 600 });
  const beating = setInterval(() => server.call("PUT", `/api/v1/leases/${lease.lease_id}/renew`, { token: lease.token, ttl_seconds: 600 }).catch(() => {}), 1000);
  const value = { holder: { name: "elsewhere:8740", incarnation: "1" }, address: "http://elsewhere:8740", version: "0.0.1", store_writable: true };
  const at = Date.now();
  await server.call("POST", "/api/v1/authority/commit", { expect: [], writes: [{ key, value: JSON.stringify({ value, created_at: at, updated_at: at }) }] });
  const other = page.locator('[data-replica="elsewhere:8740"]');
  await other.getByText("Healthy").waitFor();
  await page.getByText(/They run different versions: 0\.0\.1 and /).waitFor();
  // It falls silent, and then it is gone.
  clearInterval(beating);
  await other.getByText("Late", { exact: true }).waitFor();
  await server.release(lease);
  await other.getByText("Gone").waitFor();
  await other.getByText("It ended without a graceful stop").waitFor();
  await page.getByText("They run different versions").waitFor({ state: "detached" });
  await page.getByText("1 of 2 healthy").waitFor();
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});
