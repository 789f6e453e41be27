// One session: started, watched, kept alive by heartbeats, and stopped when its viewer leaves. It belongs
// to the page, not to a part of it, so that looking at another page does not end the video's session.

import { signal } from "@preact/signals";
import { Refused, call } from "../api/client";
import type { IntentAnswer, SessionHeartbeat, SessionView } from "../api/types";
import { Backoff, pause } from "../lib/backoff";
import { readStream } from "../lib/stream";
import { serverNow } from "../lib/time";
import { initial, nextBeat, step, type Input, type Model } from "./machine";

/** The session of this page. */
export const session = signal<Model>(initial);

let life: AbortController | undefined;
let wake: (() => void) | undefined;

function feed(input: Input): Model {
  const next = step(session.value, input);
  session.value = next;
  if (next.phase === "over" || next.phase === "idle") {
    life?.abort();
    life = undefined;
  }
  return next;
}

/** Starts a session. */
export async function start(service: string, profile: string): Promise<void> {
  if (feed({ type: "start", service, profile }).phase !== "asking") return;
  try {
    const body = { type: "stream.start", service_ref: service, profile };
    const { data } = await call<IntentAnswer>("POST", "/api/v3/intents", { body });
    const model = feed({ type: "accepted", answer: data, now: serverNow() });
    if (model.phase !== "alive") return;
    life = new AbortController();
    void beats(life.signal);
    void watch(data.session_id, life.signal);
  } catch (error) {
    feed({ type: "refused", sentence: error instanceof Error ? error.message : "The session could not be started." });
  }
}

/** Sends heartbeats at the server's interval, sooner after a failure, until the session is over. */
async function beats(signal: AbortSignal): Promise<void> {
  while (!signal.aborted) {
    await new Promise<void>((resolve) => {
      wake = resolve;
      void pause(nextBeat(session.value), signal).then(() => resolve());
    });
    if (signal.aborted) return;
    if (!session.value.idle) await beat(signal);
  }
}

async function beat(signal: AbortSignal): Promise<void> {
  const { id, interval } = session.value;
  try {
    const timeout = Math.max(1500, Math.min(5000, interval));
    const path = "/api/v3/sessions/{session_id}/heartbeat";
    const { data } = await call<SessionHeartbeat>("POST", path, { path: { session_id: id ?? "" }, signal, timeout });
    feed({ type: "acknowledged", expires: Date.parse(data.lease_expires_at) });
  } catch (error) {
    if (signal.aborted) return;
    if (error instanceof Refused && error.status === 410) await ended(signal);
    else if (error instanceof Refused && error.status === 404) feed({ type: "forgotten" });
    else feed({ type: "unanswered" });
  }
}

/** 410: the session is over for good. Why is read from it, unless that fails too. */
async function ended(signal: AbortSignal): Promise<void> {
  const id = session.value.id ?? "";
  try {
    const { data } = await call<SessionView>("GET", "/api/v3/sessions/{session_id}", { path: { session_id: id }, signal });
    if (data.reason && data.reason !== "R_LEASE_EXPIRED") feed({ type: "viewed", view: data });
  } catch {
    // The 410 is definite enough.
  }
  feed({ type: "gone" });
}

/** Follows the session's own stream; a cut stream is opened again, beginning with the state as it is. */
async function watch(id: string, signal: AbortSignal): Promise<void> {
  const backoff = new Backoff({ first: 300, most: 3000 });
  while (!signal.aborted) {
    try {
      await readStream(
        `/api/v3/sessions/${id}/events`,
        signal,
        () => backoff.reset(),
        (message) => {
          if (message.event === "state") feed({ type: "viewed", view: JSON.parse(message.data) as SessionView });
        },
      );
    } catch (error) {
      if (error instanceof Refused && error.status === 404) feed({ type: "forgotten" });
    }
    await pause(backoff.next(), signal);
  }
}

/** The viewer is there: a heartbeat right now. */
export async function stay(): Promise<void> {
  feed({ type: "stay" });
  if (life) await beat(life.signal);
  wake?.();
}

/** Nobody seems to watch. */
export const idle = (): void => void feed({ type: "idle" });

/** Stops the session. */
export async function stop(): Promise<void> {
  const { id } = feed({ type: "stop" });
  try {
    await call("POST", "/api/v3/intents", { body: { type: "stream.stop", session_id: id } });
  } catch (error) {
    if (error instanceof Refused && error.status === 404) feed({ type: "forgotten" });
    else leave();
  }
}

/** The page goes away: the browser delivers this even when nothing of the page is left. */
export function leave(): void {
  const { id, phase } = session.value;
  if (phase !== "alive" || !id) return;
  const body = JSON.stringify({ type: "stream.stop", session_id: id });
  navigator.sendBeacon("/api/v3/intents", new Blob([body], { type: "application/json" }));
  feed({ type: "left" });
}

if (typeof window !== "undefined") window.addEventListener("pagehide", leave);
