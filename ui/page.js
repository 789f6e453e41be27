// The page: a login, a player, and what the server knows right now.

import { call, words } from "/api.js";
import { play } from "/player.js";
import { Session } from "/session.js";
import { show } from "/tables.js";

const element = (id) => document.getElementById(id);
const say = (id, text) => (element(id).textContent = text);

let session = null;
let playing = null;
let hide = null;

async function health() {
  try {
    const { ok, json } = await call("GET", "/readyz");
    say("health", ok ? `Ready, store: ${json.store}` : `Not ready: ${json?.detail ?? ""}`);
  } catch {
    say("health", "The server cannot be reached");
  }
}

/** Whether this browser is logged in. */
async function enter() {
  const { status } = await call("GET", "/api/v3/sessions/00000000-0000-0000-0000-000000000000");
  const inside = status !== 401;
  element("login").hidden = inside;
  element("logout").hidden = !inside;
  element("player").hidden = !inside || status === 403;
  hide?.();
  hide = inside ? await show() : null;
  return inside;
}

element("login").addEventListener("submit", async (event) => {
  event.preventDefault();
  const token = element("token").value.trim();
  element("token").value = "";
  const answer = await fetch("/api/v3/auth/session", { method: "POST", headers: { Authorization: `Bearer ${token}` } });
  say("problem", answer.ok ? "" : "This token is not known here");
  if (answer.ok) await enter();
});

element("logout").addEventListener("click", async () => {
  session?.leave();
  await call("DELETE", "/api/v3/auth/session");
  await enter();
});

/** Shows the session as it is now. */
function draw() {
  const view = session?.view ?? {};
  const state = view.state ?? "";
  element("state").dataset.state = state;
  say("state", [state || "no session", view.reason, view.reason_detail].filter(Boolean).join(" · "));
  say("session-id", session?.id ?? "");
  const alive = session !== null && !session.over;
  element("start-button").disabled = alive;
  element("stop-button").disabled = !alive;
  element("lease").hidden = !alive;
  if (!alive) {
    playing?.abort();
    playing = null;
  } else {
    say("beats", session.beats);
    if (state === "running" && view.playback_url && !playing) watch(view.playback_url);
  }
}

async function watch(url) {
  playing = new AbortController();
  try {
    await play(element("video"), url, playing.signal);
  } catch (error) {
    say("player-problem", error.message);
  }
}

element("start").addEventListener("submit", async (event) => {
  event.preventDefault();
  say("player-problem", "");
  element("start-button").disabled = true;
  try {
    session = await Session.start(element("service").value.trim(), element("profile").value.trim(), () => queueMicrotask(draw));
  } catch (error) {
    say("player-problem", error.message);
    element("start-button").disabled = false;
  }
});

element("stop-button").addEventListener("click", () => session?.stop().catch((error) => say("player-problem", error.message)));

// Also when the tab is closed or a phone puts the page away for good.
addEventListener("pagehide", () => session?.leave());

setInterval(() => {
  if (!session || session.over) return;
  say("seconds", session.left().toFixed(0));
  element("left").max = session.ttl;
  element("left").value = session.left();
  // Two missed heartbeats are worth a warning; the third one ends it.
  element("left").low = session.ttl / 3;
}, 250);

health();
enter();
setInterval(health, 5000);
