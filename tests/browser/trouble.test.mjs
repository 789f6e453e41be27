// Trouble: the server gone, frozen, restarted, its stream cut, and over TLS.

import assert from "node:assert/strict";
import { before, test } from "node:test";
import { Server, launch, logIn, open, until, visit } from "./kit.mjs";
import { proxy } from "./proxy.mjs";

let browser;
before(async () => {
  browser = await launch();
});

test("a killed server is noticed, old data is grey and dated, and its return is used", async () => {
  const server = await Server.start();
  await server.acquire("job:before", "h", { ttl_seconds: 600 });
  const page = await open(browser, server);
  await visit(page, "#/leases?q=job");
  await page.getByText("job:before").waitFor();
  await server.kill();
  await page.locator(".banner.bad", { hasText: "cannot be reached" }).waitFor();
  await page.locator(".lease-list.stale").waitFor();
  assert.match(await page.locator(".freshness.old").textContent(), /^As of \d\d:\d\d:\d\d/);
  await server.run();
  await page.locator(".banner.bad").waitFor({ state: "detached" });
  // Logins may end with the server; then one logs in and is back where one was.
  await server.acquire("job:after", "h");
  const asked = page.getByLabel("API key");
  const found = page.getByText("job:after");
  await found.or(asked).first().waitFor();
  if (await asked.isVisible()) {
    await page.getByText("no longer known").waitFor();
    await logIn(page, server.key);
  }
  await found.waitFor();
  await page.locator(".lease-list:not(.stale)").waitFor();
  assert.ok(page.url().endsWith("#/leases?q=job"), page.url());
  assert.equal(await page.getByLabel("Search key, holder or token").inputValue(), "job");
  await page.context().close();
  await server.stop();
});

test("a login that is no longer known is asked for again, and leads back", async () => {
  const server = await Server.start();
  await server.acquire("job:mine", "h", { ttl_seconds: 600 });
  const page = await open(browser, server);
  await visit(page, "#/leases?q=job&sort=-token");
  await page.getByText("job:mine").waitFor();
  await page.context().clearCookies();
  await page.getByText("no longer known").waitFor();
  assert.equal(await page.getByText("job:mine").count(), 0, "nothing is shown to nobody");
  await logIn(page, server.key);
  await page.getByText("job:mine").waitFor();
  assert.ok(page.url().endsWith("#/leases?q=job&sort=-token"), page.url());
  await page.context().close();
  await server.stop();
});

test("a frozen server is noticed, and thawed it is used again", async () => {
  const server = await Server.start();
  const page = await open(browser, server);
  await page.getByText("Live", { exact: true }).waitFor();
  server.signal("SIGSTOP");
  try {
    await page.locator(".banner.bad", { hasText: "does not answer" }).waitFor();
    await page.locator(".freshness.old").waitFor();
    await page.locator(".stats.stale").waitFor();
  } finally {
    server.signal("SIGCONT");
  }
  await page.locator(".banner.bad").waitFor({ state: "detached" });
  await server.acquire("job:thawed", "h");
  await until("the count moves", async () => (await page.locator(".bars").textContent()).includes("job"));
  await page.locator(".freshness.old").waitFor({ state: "detached" });
  await page.context().close();
  await server.stop();
});

test("a cut stream is resumed without a gap and without repeats", async () => {
  const server = await Server.start();
  const between = await proxy(server.port);
  const through = { url: `http://127.0.0.1:${between.port}`, key: server.key };
  const page = await open(browser, through);
  await visit(page, "#/events");
  await page.getByText("Live", { exact: true }).waitFor();
  // Long enough that none ends meanwhile, which would be one more event.
  const take = (key) => server.acquire(key, "h", { ttl_seconds: 3600 });
  for (let place = 0; place < 5; place += 1) await take(`job:one-${place}`);
  await page.getByText("job:one-4").waitFor();
  between.cut();
  for (let place = 0; place < 30; place += 1) await take(`job:two-${place}`);
  await page.locator(".freshness.old").waitFor();
  between.mend();
  await page.getByText("job:two-29").waitFor();
  await until("it counts as resumed", async () => Number(await page.locator("[data-resumed]").getAttribute("data-resumed")) >= 1);
  const revisions = await page.locator("[data-revision]").evaluateAll((rows) => rows.map((row) => Number(row.dataset.revision)));
  // What the server keeps for itself, such as logins, is on no page.
  const { events } = await server.call("GET", "/api/v1/events?limit=1000");
  const all = events.map((event) => event.revision).reverse().filter((it) => it <= revisions[0]);
  assert.deepEqual(revisions, all.slice(0, revisions.length), "every revision once, newest first");
  assert.ok(revisions.length >= 35);
  // Paused, it collects; resumed, it shows all of it.
  await page.getByRole("button", { name: "Pause" }).click();
  for (let place = 0; place < 3; place += 1) await take(`job:three-${place}`);
  await until("they are counted", async () => Number(/Paused, (\d+) new events/.exec(await page.locator("main").textContent())?.[1]) >= 3);
  assert.equal(await page.getByText("job:three-0").count(), 0);
  await page.getByRole("button", { name: "Resume" }).click();
  await page.getByText("job:three-2").waitFor();
  // Filters.
  await page.getByLabel("What happened").selectOption("Released");
  await page.getByText("No event matches").waitFor();
  await page.getByLabel("What happened").selectOption("Acquired");
  await page.getByText("job:three-2").waitFor();
  await page.getByLabel("Search key, holder, token or reason").fill("two-7");
  await until("one is left", async () => (await page.locator("[data-revision]").count()) === 1);
  await page.context().close();
  between.close();
  await server.stop();
});

test("over TLS and HTTP/2 everything works too", async () => {
  const server = await Server.start({ tls: true });
  const page = await open(browser, server);
  const protocol = await page.evaluate(() => performance.getEntriesByType("navigation")[0].nextHopProtocol);
  assert.equal(protocol, "h2");
  await server.acquire("job:tls", "h", { ttl_seconds: 300 });
  await visit(page, "#/lease/job%3Atls");
  // A change through the cookie: its origin is checked over HTTP/2 as well.
  await page.getByRole("button", { name: "Revoke …" }).click();
  await page.getByRole("dialog").getByLabel("Reason").fill("rotation");
  await page.getByRole("dialog").getByRole("button", { name: "Revoke" }).click();
  await page.getByText("Revoked: rotation.", { exact: true }).waitFor();
  await visit(page, "#/sessions");
  await page.getByLabel("Service").fill("tls");
  await page.getByLabel("Profile").selectOption("virtual");
  await page.getByRole("button", { name: "Start", exact: true }).click();
  await until("the picture moves", () => page.evaluate(() => document.getElementById("video").currentTime > 0.5));
  assert.deepEqual(page.complaints, []);
  await page.context().close();
  await server.stop();
});
