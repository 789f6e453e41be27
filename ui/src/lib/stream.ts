// One stream of changes for the whole page. It is resumed from the last revision that was seen; when the
// history no longer has what came after that, the server sends a snapshot, and subscribers start anew.

import { signal } from "@preact/signals";
import { Refused, Unreachable, fill, get, me, request } from "../api/client";
import type { Event, Snapshot } from "../api/types";
import { Backoff, pause } from "./backoff";
import { SseParser, type SseMessage } from "./sse";
import { local } from "./time";

/** The server shows every ten seconds that a stream is alive; after this long it counts as lost, in ms. */
const SILENT_MS = 25_000;
/** How long opening a stream may take, in ms. */
const OPEN_MS = 8000;

/** Reads server-sent events until the stream ends or `signal` is aborted. */
export async function readStream(
  path: string,
  signal: AbortSignal,
  opened: () => void,
  told: (message: SseMessage) => void,
): Promise<void> {
  const controller = new AbortController();
  const abort = () => controller.abort();
  signal.addEventListener("abort", abort, { once: true });
  const response = await request(path, { headers: { accept: "text/event-stream" }, cache: "no-store" }, OPEN_MS, controller.signal);
  if (!response.ok || !response.body) {
    const problem = await response.json().catch(() => undefined);
    throw new Refused(response.status, problem);
  }
  opened();
  let last = local();
  const watchdog = setInterval(() => {
    if (local() - last > SILENT_MS) controller.abort();
  }, 1000);
  const parser = new SseParser();
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      last = local();
      for (const message of parser.push(value)) told(message);
    }
  } finally {
    clearInterval(watchdog);
    signal.removeEventListener("abort", abort);
    controller.abort();
  }
}

export type StreamState = "off" | "connecting" | "live" | "lost" | "paused";

export interface Batch {
  events: Event[];
  /** Everything live, when the history had a gap: what was known before is void. */
  snapshot: Snapshot | undefined;
}

type Subscriber = (batch: Batch) => void;

/** How the stream is. */
export const streamState = signal<StreamState>("off");
/** The last revision that was seen. */
export const lastRevision = signal(0);
/** How often the stream was resumed. */
export const resumed = signal(0);

const subscribers = new Set<Subscriber>();
let running: AbortController | undefined;
let waiting: Batch = { events: [], snapshot: undefined };
let flushing = false;

/** Many changes are one picture. */
function flush(): void {
  if (flushing) return;
  flushing = true;
  setTimeout(() => {
    flushing = false;
    const batch = waiting;
    waiting = { events: [], snapshot: undefined };
    for (const subscriber of subscribers) subscriber(batch);
  }, 60);
}

function told(message: SseMessage): void {
  if (message.event === "goodbye" || message.event === "failed") return;
  if (message.event === "snapshot") {
    const snapshot = JSON.parse(message.data) as Snapshot;
    waiting = { events: [], snapshot };
    lastRevision.value = snapshot.revision;
  } else {
    const event = JSON.parse(message.data) as Event;
    waiting.events.push(event);
    lastRevision.value = Math.max(lastRevision.value, event.revision);
  }
  flush();
}

async function run(signal: AbortSignal): Promise<void> {
  const backoff = new Backoff({ first: 300, most: 4000 });
  let opened = false;
  while (!signal.aborted) {
    try {
      if (!opened && lastRevision.value === 0) {
        const page = await get("/api/v1/events", { query: { limit: 1 }, signal });
        lastRevision.value = page.newest;
      }
      streamState.value = opened ? "lost" : "connecting";
      const path = fill("/api/v1/events/stream", { query: { after: lastRevision.value } });
      await readStream(
        path,
        signal,
        () => {
          if (opened) resumed.value += 1;
          opened = true;
          backoff.reset();
          streamState.value = "live";
        },
        told,
      );
    } catch (error) {
      if (error instanceof Refused && (error.status === 401 || error.status === 403)) {
        streamState.value = "off";
        if (error.status === 403) return;
        // The login may be renewed in another place; the page's own calls notice its end.
        await pause(2000, signal);
        continue;
      }
      if (!(error instanceof Unreachable) && signal.aborted) return;
    }
    if (signal.aborted) return;
    streamState.value = "lost";
    await pause(backoff.next(), signal);
  }
}

function adjust(): void {
  // A hidden page needs no connection: browsers have only six for all pages of one server.
  const wanted = subscribers.size > 0 && Boolean(me.value) && !document.hidden;
  if (wanted && !running) {
    running = new AbortController();
    void run(running.signal);
  } else if (!wanted && running) {
    running.abort();
    running = undefined;
    streamState.value = document.hidden ? "paused" : "off";
  }
}

/** Follows the changes until the returned function is called. */
export function follow(subscriber: Subscriber): () => void {
  subscribers.add(subscriber);
  adjust();
  return () => {
    subscribers.delete(subscriber);
    // The next page subscribes in the same moment.
    setTimeout(adjust, 200);
  };
}

if (typeof document !== "undefined") {
  document.addEventListener("visibilitychange", adjust);
  me.subscribe(() => setTimeout(adjust, 0));
}
