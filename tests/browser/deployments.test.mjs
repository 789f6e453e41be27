// Deployments: started, followed as cameras move, paused, resumed, rolled back by hand and by a failure.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Server, launch, logIn, open, until, visit } from "./kit.mjs";
import { Runner, cameras } from "./runner.mjs";

const READER = "reader-key-0123456789abcdef";
const NAMES = ["door-1", "door-2", "door-3", "door-4", "door-5", "door-6"];
const PATH = "/api/v1/deployments/acme/south/doors";

let server;
let browser;
let old;
let fresh;
/** How cameras do on the new version. */
let health = () => "working";

before(async () => {
  const keys = [{ token: READER, scopes: ["leases:read", "runners:read"] }];
  [server, browser] = await Promise.all([Server.start({ keys }), launch()]);
  await cameras(server, "south", NAMES);
  old = await Runner.start(server, { name: "south-1", site: "south", group: "doors", version: "1.8.0" });
  await until("the old version has all", () => old.held.size === NAMES.length);
});
after(async () => {
  await Promise.all([old?.stop(), fresh?.stop()]);
  await server?.stop();
});

const cell = (page, field) => page.locator("[data-new]").first().getAttribute(field);

test("a deployment is started, waits for a runner, pauses, goes on, and is done", async () => {
  const page = await open(browser, server);
  await visit(page, "#/deployments");
  const row = page.locator('[data-group="doors"]');
  await row.getByText("Never deployed").waitFor();
  await page.getByRole("button", { name: "Start …" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByText("Its runners have version 1.8.0.").waitFor();
  // What is wrong is said in the dialog.
  await dialog.getByLabel("New version").fill("1.8.0");
  await dialog.getByRole("button", { name: "Start" }).click();
  await dialog.getByRole("alert").waitFor();
  await dialog.getByLabel("New version").fill("1.9.0");
  await dialog.getByLabel("Cameras per step").fill("2");
  await dialog.getByRole("button", { name: "Start" }).click();
  await page.getByRole("heading", { name: "doors" }).waitFor();
  await page.getByText("Waiting for a runner of version 1.9.0.").waitFor();
  assert.equal(await cell(page, "data-old"), "6");
  // The health gate holds: nothing of the second step moves before the first one works.
  health = () => "starting";
  fresh = await Runner.start(server, { name: "south-2", site: "south", group: "doors", version: "1.9.0", health: (camera) => health(camera) });
  await page.getByText("Waiting for 2 cameras to work on version 1.9.0.").waitFor();
  await until("the first step has moved", async () => (await cell(page, "data-new")) === "2");
  assert.equal((await server.call("GET", PATH)).shifted.length, 2);
  // Paused, the first step may become healthy and nothing further moves.
  await page.getByRole("button", { name: "Pause …" }).click();
  await dialog.getByRole("button", { name: "Pause" }).click();
  await page.getByText("Paused", { exact: true }).first().waitFor();
  health = () => "working";
  await until("the step is healthy", async () => {
    const { note, shifted } = await server.call("GET", PATH);
    const runner = await server.call("GET", "/api/v1/runners/south-2");
    return note === "paused" && shifted.length === 2 && runner.assigned_cameras.length === 2;
  });
  assert.equal((await server.call("GET", PATH)).shifted.length, 2);
  await page.getByRole("button", { name: "Resume …" }).click();
  await dialog.getByRole("button", { name: "Resume" }).click();
  await page.getByText("Done", { exact: true }).first().waitFor();
  await page.getByText("Done: 6 cameras on version 1.9.0.").first().waitFor();
  await until("all have moved", async () => (await cell(page, "data-new")) === "6" && (await cell(page, "data-old")) === "0");
  const history = await page.locator(".timeline strong").allTextContents();
  assert.deepEqual(history.slice(-3), ["Paused.", "Shifted 2 cameras, 4 left.", "Started from version 1.8.0 to version 1.9.0."]);
  await visit(page, "#/deployments");
  await row.getByText("Done", { exact: true }).waitFor();
  await row.getByText("6 of 6 cameras").waitFor();
  // What was refused on purpose is the one complaint.
  assert.deepEqual(page.complaints.filter((it) => !/status of 4\d\d/.test(it)), []);
  assert.equal(old.fault ?? fresh.fault, undefined);
  await page.context().close();
});

test("a rollback is asked for twice and brings every camera back", async () => {
  const page = await open(browser, server);
  await visit(page, "#/deployment/acme%2Fsouth%2Fdoors");
  await page.getByRole("button", { name: "Roll back …" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByText("Every camera goes back to version 1.8.0").waitFor();
  await dialog.getByRole("button", { name: "Cancel" }).click();
  assert.equal((await server.call("GET", PATH)).state, "done");
  await page.getByRole("button", { name: "Roll back …" }).click();
  await dialog.getByRole("button", { name: "Roll back" }).click();
  await page.getByText("Rolled back: ordered.").first().waitFor();
  await until("all are back", async () => (await cell(page, "data-old")) === "6");
  assert.equal(await page.getByRole("button", { name: "Roll back …" }).count(), 0);
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});

test("a camera that fails on the new version brings all of them back, and the page says why", async () => {
  const page = await open(browser, server);
  await visit(page, "#/deployment/acme%2Fsouth%2Fdoors");
  health = (camera) => (camera === "door-3" ? "failed" : "working");
  await page.getByRole("button", { name: "Start …" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("New version").fill("1.9.0");
  await dialog.getByLabel("Cameras per step").fill("2");
  await dialog.getByRole("button", { name: "Start" }).click();
  await page.getByText("Rolled back: camera door-3 failed on version 1.9.0.").first().waitFor();
  await until("all are back", async () => (await cell(page, "data-old")) === "6");
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});

test("who may only look sees the progress and no orders", async () => {
  const page = await open(browser, server, { login: false });
  await logIn(page, READER);
  await visit(page, "#/deployments");
  await page.locator('[data-group="doors"]').getByText("Rolled back", { exact: true }).waitFor();
  assert.equal(await page.getByRole("button", { name: "Start …" }).count(), 0);
  await visit(page, "#/deployment/acme%2Fsouth%2Fdoors");
  await page.locator(".timeline").waitFor();
  assert.equal(await page.getByRole("button", { name: /Start|Pause|Resume|Roll back/ }).count(), 0);
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});
