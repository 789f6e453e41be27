// Sessions: started, played, kept alive, warned about, ended, and started again.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { SOON, Server, launch, open, until, visit } from "./kit.mjs";

/** Half of it is left when the page warns: time enough to press a button on a busy machine. */
const TTL = 30;
let server;
let browser;
before(async () => {
  const env = { LEASEHOLD_SESSIONS_LEASE_TTL: `${TTL}s`, LEASEHOLD_SESSIONS_HEARTBEAT_INTERVAL: "1s", LEASEHOLD_SESSIONS_TUNER_SLOTS: "0" };
  [server, browser] = await Promise.all([Server.start({ env }), launch()]);
});
after(() => server?.stop());

const state = (page) => page.locator(".session-state");
const time = (page) => page.evaluate(() => document.getElementById("video").currentTime);

// There is one tuner, and whoever watched before may still be giving it back.
const tunerIsFree = () => until("the tuner is free", async () => (await server.call("GET", "/api/v1/leases?kind=tuner")).leases.length === 0);

async function watch(page, service, profile = "virtual") {
  await tunerIsFree();
  await visit(page, "#/sessions");
  await page.getByLabel("Service").fill(service);
  await page.getByLabel("Profile").selectOption(profile);
  await page.getByRole("button", { name: "Start", exact: true }).click();
  await page.locator('.session-state[data-state="running"]').waitFor();
  return state(page).locator("[data-session]").getAttribute("data-session");
}

const session = (id) => server.call("GET", `/api/v3/sessions/${id}`);

// What the video says of itself: a picture that stands still leaves no other trace.
const told = (page) =>
  page.evaluate(() => {
    const video = document.getElementById("video");
    const { currentTime, paused, seeking, readyState, networkState, error } = video;
    const buffered = Array.from(video.buffered, (_, at) => [video.buffered.start(at), video.buffered.end(at)]);
    const asked = performance.getEntriesByType("resource").slice(-4).map((it) => [it.name.split("/").pop(), it.responseStatus, Math.round(it.startTime)]);
    return { currentTime, paused, seeking, readyState, networkState, error: error?.message, buffered, note: document.querySelector(".screen-note")?.textContent, phase: document.querySelector(".session-state")?.dataset.phase, asked, now: Math.round(performance.now()) };
  });
const advances = async (page, what = "the picture moves") => {
  const from = await time(page);
  await until(what, async () => (await time(page)) > from + 0.4).catch(async (error) => {
    throw new Error(`${error.message}: ${JSON.stringify(await told(page))}`);
  });
};

test("a viewer watches, heartbeats keep the session, and leaving ends it", async () => {
  const page = await open(browser, server);
  const id = await watch(page, "channel-1");
  await until("there is a picture", () => page.evaluate(() => document.getElementById("video").videoWidth > 0));
  await advances(page);
  // It outlives its ttl by heartbeats that the server sees.
  const begun = Date.now();
  const first = (await session(id)).last_heartbeat;
  await until("the server sees heartbeats", async () => {
    const now = await session(id);
    assert.equal(now.state, "running");
    return now.last_heartbeat && now.last_heartbeat !== first && Date.now() - begun > (TTL + 1) * 1000;
  });
  assert.ok(Number(await page.locator("[data-beats]").getAttribute("data-beats")) >= 4);
  await advances(page, "it still plays");
  // Another page keeps the session; the one with everybody's sessions shows it.
  await visit(page, "#/events");
  await page.getByText(`session:${id}`).first().waitFor();
  await visit(page, "#/sessions");
  await page.locator(`#sessions tr[data-session="${id}"]`, { hasText: "Running" }).waitFor();
  await advances(page, "it plays again");
  assert.deepEqual(page.complaints, []);
  // The window is closed: the session ends right away, not by its ttl.
  await page.close({ runBeforeUnload: false });
  const over = await until("the session ends", async () => {
    const now = await session(id);
    return now.state === "stopped" && now;
  });
  assert.equal(over.reason, "R_CLIENT_STOP");
});

test("all tuners in use is said as a sentence, and so is somebody else's channel", async () => {
  const page = await open(browser, server);
  await watch(page, "channel-2");
  const other = await open(browser, server);
  await visit(other, "#/sessions");
  await other.getByLabel("Service").fill("channel-3");
  await other.getByLabel("Profile").selectOption("virtual");
  await other.getByRole("button", { name: "Start", exact: true }).click();
  await state(other).getByText("All tuners are in use. Try again when one is free.").waitFor();
  await state(other).getByText("Refused").waitFor();
  // Stopped by hand.
  await page.getByRole("button", { name: "Stop" }).click();
  await state(page).getByText("The session was stopped.").waitFor();
  await page.context().close();
  await other.context().close();
});

test("lost heartbeats warn, a button stays, and 410 leads to a new start", async () => {
  const page = await open(browser, server);
  const id = await watch(page, "channel-4");
  await advances(page);
  // Heartbeats and playlists are lost until the button is pressed, later everything of the session. What is
  // lost is decided without a pause: a handler that waits may be asked to let go meanwhile.
  let lost = /\/(heartbeat|index\.m3u8)$/;
  await page.exposeFunction("noteStay", () => (lost = undefined));
  await page.evaluate(() => document.addEventListener("click", (event) => event.target.closest(".session-warning button") && window.noteStay(), true));
  await page.route(/\/api\/v3\/sessions\/[^?]+$/, (route) => (lost?.test(route.request().url()) ? route.abort("connectionfailed") : route.continue()).catch(() => {}));
  const warning = page.locator(".session-warning");
  await warning.getByText("Heartbeats are not getting through.").waitFor();
  assert.equal((await session(id)).state, "running");
  // By the keyboard: a mouse waits until nothing moves, which on a busy machine can take all the time that is left.
  await warning.getByRole("button", { name: /Stay/ }).press("Enter");
  await warning.waitFor({ state: "detached" });
  assert.equal(await state(page).getAttribute("data-phase"), "alive", "the button came too late");
  await advances(page, "it plays on");
  // Now nothing of this page gets through until the session is over.
  lost = /\/(heartbeat|events|index\.m3u8)$/;
  await until("the server ends the session", async () => (await session(id)).reason === "R_LEASE_EXPIRED", SOON + TTL * 1000);
  lost = undefined;
  await page.locator('.session-state[data-phase="over"]').waitFor();
  assert.match(await state(page).textContent(), /no heartbeat reached the server in time/);
  await tunerIsFree();
  await page.locator(".session-over").getByRole("button", { name: "Start again" }).click();
  await page.locator('.session-state[data-state="running"]').waitFor();
  const next = await state(page).locator("[data-session]").getAttribute("data-session");
  assert.notEqual(next, id);
  await advances(page, "the new session plays");
  await page.context().close();
});

test("five seconds offline do not end the video", async () => {
  // With the default settings: a minute without a heartbeat is allowed.
  const patient = await Server.start();
  const page = await open(browser, patient);
  const id = await watch(page, "channel-5");
  await advances(page);
  await page.context().setOffline(true);
  const from = Date.now();
  await page.locator(".banner.bad").waitFor();
  await until("five seconds pass", () => Date.now() - from > 5000);
  await page.context().setOffline(false);
  await page.locator(".banner.bad").waitFor({ state: "detached" });
  await advances(page, "the same session plays on");
  assert.equal(await state(page).locator("[data-session]").getAttribute("data-session"), id);
  assert.equal((await patient.call("GET", `/api/v3/sessions/${id}`)).state, "running");
  await page.context().close();
  await patient.stop();
});

test("what ffmpeg makes is played, and its end by somebody else is shown", async () => {
  const page = await open(browser, server);
  const id = await watch(page, "channel-6", "low");
  await until("there is a picture", () => page.evaluate(() => document.getElementById("video").videoWidth > 0));
  await advances(page);
  await server.call("POST", "/api/v3/intents", { type: "stream.stop", session_id: id });
  await state(page).getByText("The session was stopped.").waitFor();
  await page.locator(".session-over").waitFor();
  // A heartbeat may have been answered before the event came: the browser notes its 410.
  assert.deepEqual(page.complaints.filter((it) => !/status of 410/.test(it)), []);
  await page.context().close();
});
