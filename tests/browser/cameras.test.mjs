// Cameras: zones drawn on a picture (the camera's newest still, one from disk, nobody else's), and why one has no owner.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { after, before, test } from "node:test";
import { Server, launch, logIn, open, until, visit } from "./kit.mjs";
import { Runner, cameras } from "./runner.mjs";

const STRANGER = "stranger-key-0123456789abcdef";
const SIZE = [1920, 1080];

let server;
let browser;
let runner;
/** Cameras that do not work, and what their runner says about it. */
const failing = new Set();
before(async () => {
  const keys = [{ token: STRANGER, scopes: ["leases:read", "runners:read"], tenant: "rival" }];
  [server, browser] = await Promise.all([Server.start({ keys }), launch()]);
  await cameras(server, "north", ["gate", "yard"]);
  runner = await Runner.start(server, { name: "edge-1", site: "north", group: "blue", version: "1", health: (camera) => (failing.has(camera) ? "failed" : "working") });
  await until("the runner has both", () => runner.held.size === 2);
});
after(async () => {
  await runner?.stop();
  await server?.stop();
});

/** A picture whose left half has one colour and whose right half another. */
const halves = (left, right, size = "640x360", codec = "png") =>
  execFileSync("ffmpeg", ["-v", "error", "-f", "lavfi", "-i", `color=${left}:s=${size}`, "-f", "lavfi", "-i", `color=${right}:s=${size}`, "-filter_complex", "[1]crop=iw/2:ih:0:0[r];[0][r]overlay=W/2:0", "-frames:v", "1", "-c:v", codec, "-f", "image2pipe", "-"]);

/** Sends a still as the holder does. */
const send = (camera, picture, size = SIZE) => server.picture(camera, runner.held.get(camera), size, picture);

/** The colours of the picture as it is shown with what is drawn on it, at places from 0 to 1. */
async function colours(page, ...places) {
  const picture = await page.locator(".canvas image").screenshot();
  const raw = execFileSync("ffmpeg", ["-v", "error", "-f", "png_pipe", "-i", "-", "-vf", "scale=100:100:flags=neighbor", "-f", "rawvideo", "-pix_fmt", "rgb24", "-"], { input: picture });
  return places.map(([x, y]) => [...raw.subarray((Math.round(y * 99) * 100 + Math.round(x * 99)) * 3).subarray(0, 3)]);
}
const isRed = ([r, g, b]) => r > 150 && g < 80 && b < 80;
const isBlue = ([r, g, b]) => b > 150 && r < 80 && g < 80;
const isGreen = ([r, g, b]) => g > 90 && r < 80 && b < 80;

/** Draws one more zone, its corners at places from 0 to 1 of the picture. */
async function draw(page, corners) {
  await page.getByRole("button", { name: "Add a zone" }).click();
  const box = await page.locator(".canvas image").boundingBox();
  for (const [x, y] of corners) await page.mouse.click(box.x + box.width * x, box.y + box.height * y);
  await page.getByRole("button", { name: "Done drawing" }).click();
}

/** Saves, and checks where the corners of a zone are in a picture of this size. */
async function saved(page, place, corners, [width, height]) {
  await page.getByRole("button", { name: "Save", exact: true }).click();
  const polygon = await until("it is saved", async () => (await server.call("GET", "/api/v1/cameras/gate")).zones[place]?.polygon);
  assert.equal(polygon.length, corners.length);
  for (const [index, [x, y]] of corners.entries()) {
    const [px, py] = polygon[index];
    assert.ok(Math.abs(px / width - x) < 0.01 && Math.abs(py / height - y) < 0.01, `${px}, ${py} is not at ${x}, ${y} of the picture`);
  }
  return polygon;
}

test("zones are drawn on the camera's newest still and count in the camera's own pixels", async () => {
  assert.equal((await send("gate", halves("red", "blue"))).status, 200);
  const page = await open(browser, server);
  await visit(page, "#/camera/gate");
  await page.locator('.canvas image[href^="blob:"]').waitFor();
  assert.equal(await page.locator(".canvas").getAttribute("viewBox"), "0 0 1920 1080");
  await page.getByText("The camera's picture, 1920 × 1080 pixels").waitFor();
  await until("the still is on the screen", async () => {
    const [left, right] = await colours(page, [0.1, 0.9], [0.9, 0.9]);
    return isRed(left) && isBlue(right);
  });
  const corners = [[0.25, 0.25], [0.75, 0.25], [0.75, 0.75], [0.25, 0.75]];
  await draw(page, corners);
  // The picture shines through the zone, and is not covered beside it.
  const [inside, beside] = await colours(page, [0.35, 0.5], [0.1, 0.5]);
  assert.ok(isRed(beside), `${beside}`);
  assert.ok(inside[0] > 120 && inside[1] > beside[1] + 10, `${inside} over ${beside}`);
  const first = await saved(page, 0, corners, SIZE);
  // A newer one, of another shape: the zones keep their pixels, and the next one counts in the new ones.
  const square = [1000, 1000];
  assert.equal((await send("gate", halves("green", "blue", "480x480", "mjpeg"), square)).status, 200);
  await page.evaluate(() => document.dispatchEvent(new Event("visibilitychange")));
  await page.locator('.canvas[viewBox="0 0 1000 1000"]').waitFor();
  await until("the newer one is on the screen", async () => isGreen((await colours(page, [0.1, 0.95]))[0]));
  await page.getByText("Zone 1: partly outside of the picture.").waitFor();
  const lower = [[0.1, 0.8], [0.4, 0.8], [0.25, 0.95]];
  await draw(page, lower);
  await saved(page, 1, lower, square);
  assert.deepEqual((await server.call("GET", "/api/v1/cameras/gate")).zones[0].polygon, first);
  assert.deepEqual(page.complaints, []);
  assert.deepEqual(page.foreign, []);
  await page.context().close();
});

test("without a still a picture from disk serves, and never leaves the browser", async () => {
  const page = await open(browser, server);
  const sent = [];
  page.on("request", (request) => request.method() !== "GET" && sent.push(request.url()));
  await visit(page, "#/camera/yard");
  await page.getByText("No picture of this camera is known yet: 1280 × 720 pixels are assumed.").waitFor();
  const choose = page.locator('.file input[type="file"]');
  await choose.setInputFiles({ name: "notes.png", mimeType: "image/png", buffer: Buffer.from("no picture at all") });
  await page.getByText("notes.png is not a picture that this browser can show.").waitFor();
  await choose.setInputFiles({ name: "yard.png", mimeType: "image/png", buffer: halves("red", "blue", "800x600") });
  await page.getByText("yard.png, 800 × 600 pixels. It stays in this browser.").waitFor();
  assert.equal(await page.locator(".canvas").getAttribute("viewBox"), "0 0 800 600");
  await until("it is on the screen", async () => {
    const [left, right] = await colours(page, [0.1, 0.1], [0.9, 0.1]);
    return isRed(left) && isBlue(right);
  });
  await page.getByRole("button", { name: "Without a picture" }).click();
  await page.locator(".canvas image").waitFor({ state: "detached" });
  assert.deepEqual(sent, []);
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});

test("another tenant sees neither the camera nor its picture", async () => {
  const camera = "gate";
  assert.equal((await send(camera, halves("red", "blue"))).status, 200);
  const page = await open(browser, server, { login: false });
  await logIn(page, STRANGER);
  await visit(page, `#/camera/${camera}`);
  await page.getByText("There is no such camera").waitFor();
  assert.equal(await page.locator(".canvas").count(), 0);
  const status = await page.evaluate(async (path) => (await fetch(path)).status, `/api/v1/cameras/${camera}/picture`);
  assert.equal(status, 404);
  // Something that is no picture is not kept, whatever its sender calls it.
  const refused = await send(camera, "<svg xmlns='http://www.w3.org/2000/svg'/>");
  assert.equal(refused.status, 415);
  assert.match((await refused.json()).detail, /JPEG, PNG or WebP/);
  await page.context().close();
});

test("parked, disabled and older cameras are shown with their reasons", async () => {
  await cameras(server, "north", ["broken"]);
  await until("the runner has it", () => runner.held.has("broken"));
  const page = await open(browser, server);
  await visit(page, "#/cameras?site=acme%2Fnorth");
  const row = (name) => page.locator(".table tbody tr", { has: page.getByText(name, { exact: true }) });
  await row("yard").getByText("Runs it", { exact: true }).waitFor();
  // Its configuration changes, and its runner goes on with the one before.
  await server.call("PUT", "/api/v1/cameras/yard", { min_score: 0.7 });
  await row("yard").getByText("Runs an older one").waitFor();
  // It fails wherever it could be.
  failing.add("broken");
  await row("broken").getByText(/^Parked: /).waitFor();
  await server.call("PUT", "/api/v1/cameras/broken", { enabled: false });
  await row("broken").getByText("Disabled", { exact: true }).waitFor();
  await row("broken").getByRole("link", { name: "broken" }).click();
  await page.getByText("Disabled.", { exact: true }).waitFor();
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});
