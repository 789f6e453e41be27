// Leases: their lives, their search, their revocation.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Server, launch, open, until, visit } from "./kit.mjs";

/** How many leases the long list has. */
const MANY = Number(process.env.LEASEHOLD_PAGE_LEASES ?? 100_000);
/** How many keys one acquire may name. */
const PER_CALL = 250;

let server;
let browser;
before(async () => {
  [server, browser] = await Promise.all([Server.start(), launch()]);
});
after(() => server?.stop());

const row = (page, key) => page.locator(".vrow", { has: page.getByText(key, { exact: true }) });

test("a lease appears, counts down by the server's clock, and goes", async () => {
  const page = await open(browser, server);
  // A browser whose clock is three hours wrong shows the same time left.
  await page.clock.install({ time: Date.now() - 3 * 3600 * 1000 });
  await page.clock.resume();
  await page.reload();
  await visit(page, "#/leases");
  await page.getByText("Leases").first().waitFor();
  const lease = await server.acquire("job:life", "worker-7", { ttl_seconds: 1800 });
  await row(page, "job:life").waitFor();
  const words = await row(page, "job:life").locator(".countdown-words").textContent();
  const [, left] = /^(\d+) min/.exec(words) ?? [];
  assert.ok(left >= 20 && left <= 30, words);
  await until("time passes", async () => (await row(page, "job:life").locator(".countdown-words").textContent()) !== words);
  assert.equal(await row(page, "job:life").locator(".token").textContent(), String(lease.token));
  await server.release(lease);
  await row(page, "job:life").waitFor({ state: "detached" });
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});

test("one key has a link, a timeline with reasons, its waiters and a guarded revoke", async () => {
  await server.release(await server.acquire("deploy:web", "first"));
  const held = await server.acquire("deploy:web", "second", { ttl_seconds: 300 });
  const waiting = server.acquire("deploy:web", "third", { wait_seconds: 60 });
  const page = await open(browser, server);
  await page.goto(`${server.url}/#/lease/${encodeURIComponent("deploy:web")}`);
  await page.reload();
  await page.getByText("Waiting (1)").waitFor();
  const timeline = page.locator(".timeline");
  assert.match(await timeline.textContent(), /second.*Holds it now.*first.*Released it/s);
  await page.getByRole("button", { name: "Revoke …" }).click();
  const dialog = page.getByRole("dialog");
  assert.ok(await dialog.getByRole("button", { name: "Revoke" }).isDisabled(), "a reason is needed");
  await dialog.getByLabel("Reason").fill("maintenance of rack 4");
  await dialog.getByRole("button", { name: "Revoke" }).click();
  const next = await waiting;
  assert.equal(next.holder, "third");
  assert.ok(next.token > held.token);
  await page.getByText("Revoked: maintenance of rack 4.", { exact: true }).waitFor();
  await page.getByText("Waiting (0)").waitFor();
  assert.match(await page.locator(".facts").first().textContent(), /third/);
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});

test("a selected token stays selected while rows come and go", async () => {
  const lease = await server.acquire("job:pick-me", "steady", { ttl_seconds: 300 });
  const page = await open(browser, server);
  await visit(page, "#/leases?q=job");
  await row(page, "job:pick-me").locator(".token").click();
  const selected = () => page.evaluate(() => String(document.getSelection()));
  await until("the token is selected", async () => (await selected()) === String(lease.token));
  for (let place = 0; place < 12; place += 1) await server.release(await server.acquire(`job:a-${place}`, "busy"));
  await page.waitForTimeout(1500);
  assert.equal(await selected(), String(lease.token));
  await page.evaluate(() => document.getSelection().removeAllRanges());
  await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
  await row(page, "job:pick-me").getByRole("button", { name: "Copy the token of job:pick-me" }).click();
  await until("it is copied", async () => (await page.evaluate(() => navigator.clipboard.readText())) === String(lease.token));
  await server.acquire("job:a-after", "busy", { ttl_seconds: 60 });
  await row(page, "job:a-after").waitFor();
  await page.context().close();
});

test("leases are filtered by kind, holder and status and sorted, and the link says how", async () => {
  for (const [key, holder] of [["tool:a", "zoe"], ["tool:b", "yan"], ["tool:c", "zoe"]]) await server.acquire(key, holder, { ttl_seconds: 3600 });
  const waiting = server.acquire("tool:a", "xia", { wait_seconds: 60 });
  const page = await open(browser, server);
  await visit(page, "#/leases");
  const shows = async (...keys) => {
    const want = JSON.stringify(keys);
    await until(`${want} is shown`, async () => JSON.stringify(await page.locator(".vrow .key").allTextContents()) === want);
  };
  await page.getByLabel("Kind").selectOption("tool");
  await shows("tool:a", "tool:a", "tool:b", "tool:c");
  await page.getByLabel("Status").selectOption("Waiting");
  await shows("tool:a");
  await page.locator(".vrow").getByText("xia").waitFor();
  await page.getByLabel("Status").selectOption("Active");
  await page.getByRole("columnheader", { name: "Token" }).getByRole("button").click();
  await shows("tool:a", "tool:b", "tool:c");
  await page.getByRole("columnheader", { name: "Token" }).getByRole("button").click();
  await shows("tool:c", "tool:b", "tool:a");
  await page.locator(".vrow").getByText("zoe").first().click();
  await page.getByRole("button", { name: "Remove the filter for holder zoe" }).waitFor();
  await page.goto(`${server.url}/#/leases?kind=tool&holder=zoe&status=active&sort=-key`);
  await page.reload();
  await shows("tool:c", "tool:a");
  await page.getByText(/^2 of 2 \(\d+ in all\)$/).waitFor();
  const { leases } = await server.call("GET", "/api/v1/leases?kind=tool&status=active");
  await server.release(leases.find((it) => it.id === "a"));
  assert.equal((await waiting).holder, "xia");
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});

test(`${MANY} leases are listed, sorted and searched without lag`, { timeout: 400_000 }, async (context) => {
  const begun = Date.now();
  const calls = Array.from({ length: Math.ceil(MANY / PER_CALL) }, (_, call) => call);
  await Promise.all(
    Array.from({ length: 8 }, async () => {
      for (let call = calls.pop(); call !== undefined; call = calls.pop()) {
        const keys = Array.from({ length: Math.min(PER_CALL, MANY - call * PER_CALL) }, (_, place) => ({ kind: "item", id: String(call * PER_CALL + place).padStart(7, "0") }));
        await server.call("POST", "/api/v1/leases/acquire", { keys, holder: `filler-${call % 50}`, incarnation: "1", ttl_seconds: 3600 });
      }
    }),
  );
  context.diagnostic(`${MANY} leases made in ${Date.now() - begun} ms`);
  const page = await open(browser, server);
  const rows = [];
  page.on("response", async (response) => {
    if (!response.url().includes("/leases/search")) return;
    const answer = await response.json().catch(() => undefined);
    if (answer) rows.push(answer.leases.length);
  });
  await visit(page, "#/leases?kind=item");
  const counted = page.locator(".count");
  const total = MANY.toLocaleString("en-US");
  await until("it says how many there are", async () => (await counted.textContent()).startsWith(`200 of ${total}`));
  const drawn = await page.locator(".vrow").count();
  assert.ok(drawn < 80, `${drawn} rows are drawn`);
  // To the very end, as with a dragged scroll bar.
  const last = String(MANY - 1).padStart(7, "0");
  const asked = Date.now();
  await page.locator(".vbox").evaluate((box) => (box.scrollTop = box.scrollHeight));
  await page.getByText(`item:${last}`, { exact: true }).waitFor();
  const jumped = Date.now() - asked;
  // A search while typing.
  const wanted = String(Math.floor(MANY / 2) + 77).padStart(7, "0");
  const typed = Date.now();
  await page.getByLabel("Search key, holder or token").fill(wanted);
  await until("one is found", async () => (await counted.textContent()).startsWith("1 of 1 "));
  await page.getByText(`item:${wanted}`, { exact: true }).waitFor();
  const searched = Date.now() - typed;
  // The page itself stays responsive: about 150 ms is ordinary, and a busy machine may take many times that.
  const longest = await page.evaluate(
    () =>
      new Promise((resolve) => {
        let most = 0;
        new PerformanceObserver((list) => {
          for (const entry of list.getEntries()) most = Math.max(most, entry.duration);
        }).observe({ type: "longtask", buffered: true });
        setTimeout(() => resolve(most), 300);
      }),
  );
  context.diagnostic(`to the end of the list ${jumped} ms, search ${searched} ms, longest task ${Math.round(longest)} ms`);
  assert.ok(longest < 5000, `a task took ${longest} ms`);
  // Not by luck: it asked for pages, not for everything.
  assert.ok(rows.length > 0 && rows.every((it) => it <= 200), `${rows} leases in one answer`);
  assert.ok(rows.length < 100, `${rows.length} answers`);
  assert.deepEqual(page.complaints, []);
  await page.context().close();
});
