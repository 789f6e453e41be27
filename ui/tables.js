// Read-only views: sessions, leases as they change, and the nodes that poll.

import { call } from "/api.js";

const element = (id) => document.getElementById(id);
const time = (text) => (text ? new Date(text).toLocaleTimeString() : "");
/** How often what no event tells is asked for, in ms. */
const AGAIN = 5000;
/** How many rows a table shows at most: a page is for people. */
const ROWS = 200;

function fill(name, rows) {
  element(`${name}-table`).hidden = false;
  element(name).replaceChildren(
    ...rows.slice(0, ROWS).map((cells) => {
      const row = document.createElement("tr");
      for (const text of cells) row.insertCell().textContent = text ?? "";
      return row;
    }),
  );
}

async function sessions() {
  const { ok, json } = await call("GET", `/api/v3/sessions?limit=${ROWS}`);
  if (!ok) return;
  fill("sessions", json.sessions.map((it) => [it.service_ref, it.profile, it.state, it.reason, it.tuner_slot, time(it.lease_expires_at)]));
}

async function nodes() {
  const { ok, json } = await call("GET", "/api/v1/nodes");
  if (!ok) return;
  fill("nodes", json.nodes.map((it) => [it.name ?? it.id, it.targets.map((target) => target.id).join(", "), time(it.since), time(it.renewed_at)]));
}

/** Shows what this login may see, and keeps it up to date until the returned function is called. */
export async function show() {
  const leases = new Map();
  let drawn = true;
  const put = (it) => leases.set(`${it.kind}:${it.id}`, it);
  const draw = () => {
    if (drawn) return;
    drawn = true;
    const keys = [...leases.keys()].sort();
    fill("leases", keys.map((key) => [key, leases.get(key).holder, leases.get(key).token, time(leases.get(key).expires_at)]));
  };
  const changed = () => {
    if (!drawn) return;
    drawn = false;
    // Many changes are one picture.
    requestAnimationFrame(draw);
  };

  let events = null;
  const { ok, json } = await call("GET", "/api/v1/leases/?status=active&limit=1000");
  if (ok) {
    json.leases.forEach(put);
    drawn = false;
    draw();
    events = new EventSource("/api/v1/events/stream");
    events.addEventListener("open", () => (element("live").textContent = "(live)"));
    events.addEventListener("error", () => (element("live").textContent = "(connecting …)"));
    events.addEventListener("snapshot", (event) => {
      leases.clear();
      JSON.parse(event.data).leases.forEach(put);
      changed();
    });
    for (const kind of ["lease_acquired", "lease_renewed"]) {
      events.addEventListener(kind, (event) => (put(JSON.parse(event.data)), changed()));
    }
    for (const kind of ["lease_expired", "lease_released", "lease_revoked"]) {
      events.addEventListener(kind, (event) => (leases.delete(JSON.parse(event.data).key), changed()));
    }
    for (const kind of ["record_put", "record_removed"]) {
      events.addEventListener(kind, (event) => JSON.parse(event.data).kind === "session" && soon());
    }
  }
  let waiting = null;
  const soon = () => (waiting ??= setTimeout(() => ((waiting = null), sessions().catch(() => {})), 200));
  const again = () => Promise.all([sessions(), nodes()]).catch(() => {});
  const timer = setInterval(again, AGAIN);
  await again();
  return () => {
    clearInterval(timer);
    clearTimeout(waiting);
    events?.close();
    for (const name of ["sessions", "leases", "nodes"]) element(`${name}-table`).hidden = true;
  };
}
