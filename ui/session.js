// One session: started, watched, kept alive by heartbeats, and stopped when its viewer leaves.

import { call, until, words } from "/api.js";

const OVER = ["stopped", "failed", "ended"];

export class Session {
  /** Starts a session; `changed` is told whenever something about it is new. */
  static async start(service, profile, changed) {
    const answer = await call("POST", "/api/v3/intents", { type: "stream.start", service_ref: service, profile });
    if (!answer.ok) throw new Error(words(answer));
    return new Session(answer.json, changed);
  }

  constructor(answer, changed) {
    this.id = answer.session_id;
    this.view = answer;
    this.changed = changed;
    this.beats = 0;
    this.over = false;
    this.ttl = Math.max(1, until(answer.lease_expires_at) / 1000);
    this.timer = setInterval(() => this.beat(), answer.heartbeat_interval * 1000);
    this.events = new EventSource(`/api/v3/sessions/${this.id}/events`);
    this.events.addEventListener("state", (event) => this.saw(JSON.parse(event.data)));
    this.events.addEventListener("forgotten", () => this.end({ state: "stopped", reason: "forgotten" }));
    changed();
  }

  /** Seconds until it ends without a further heartbeat. */
  left() {
    return Math.max(0, until(this.view.lease_expires_at) / 1000);
  }

  saw(view) {
    this.view = view;
    if (OVER.includes(view.state)) this.end(view);
    else this.changed();
  }

  async beat() {
    let answer;
    try {
      answer = await call("POST", `/api/v3/sessions/${this.id}/heartbeat`);
    } catch {
      // No answer is no loss: the next one may come through until the lease ends.
      if (this.left() === 0) this.end({ ...this.view, state: "stopped", reason: "R_LEASE_EXPIRED" });
      return;
    }
    if (this.over) return;
    if (answer.ok) {
      this.beats += 1;
      this.view = { ...this.view, lease_expires_at: answer.json.lease_expires_at };
      this.changed();
    } else if (answer.status === 410 || answer.status === 404) {
      this.end({ ...this.view, state: "stopped", reason: "R_LEASE_EXPIRED" });
    }
  }

  async stop() {
    const answer = await call("POST", "/api/v3/intents", { type: "stream.stop", session_id: this.id });
    if (!answer.ok && answer.status !== 404) throw new Error(words(answer));
  }

  /** The page goes away: the browser delivers this even when nothing of the page is left. */
  leave() {
    if (this.over) return;
    const body = JSON.stringify({ type: "stream.stop", session_id: this.id });
    navigator.sendBeacon("/api/v3/intents", new Blob([body], { type: "application/json" }));
    this.end({ ...this.view, state: "stopped" });
  }

  end(view) {
    if (this.over) return;
    this.over = true;
    this.view = view;
    clearInterval(this.timer);
    this.events.close();
    this.changed();
  }
}
