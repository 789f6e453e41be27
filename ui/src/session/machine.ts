// The life of a session as its viewer sees it: values and transitions, no timers, no page.

import type { IntentAnswer, SessionView } from "../api/types";
import { sessionSentence } from "../lib/words";

export const OVER = ["stopped", "failed", "ended"];

export type Phase = "idle" | "asking" | "alive" | "over";

export interface Model {
  phase: Phase;
  service: string;
  profile: string;
  id: string | undefined;
  /** The state that the server last reported. */
  state: string;
  playback: string | undefined;
  /** Until when the session lives without a heartbeat: the server's time in ms. */
  expires: number;
  /** How long each heartbeat lasts, in ms. */
  ttl: number;
  /** How often to send one, in ms. */
  interval: number;
  /** How many were acknowledged. */
  beats: number;
  /** How many in a row were not. */
  missed: number;
  /** Nobody seems to watch: heartbeats stop until somebody stays. */
  idle: boolean;
  /** What to tell the viewer. */
  sentence: string;
  /** Whether this page asked for its end. */
  stopping: boolean;
}

export type Input =
  | { type: "start"; service: string; profile: string }
  | { type: "accepted"; answer: IntentAnswer; now: number }
  | { type: "refused"; sentence: string }
  | { type: "viewed"; view: SessionView }
  | { type: "acknowledged"; expires: number }
  | { type: "unanswered" }
  | { type: "gone" }
  | { type: "forgotten" }
  | { type: "idle" }
  | { type: "stay" }
  | { type: "stop" }
  | { type: "left" };

export const initial: Model = {
  phase: "idle",
  service: "",
  profile: "",
  id: undefined,
  state: "",
  playback: undefined,
  expires: 0,
  ttl: 0,
  interval: 0,
  beats: 0,
  missed: 0,
  idle: false,
  sentence: "",
  stopping: false,
};

const over = (model: Model, sentence: string, state = "stopped"): Model => ({
  ...model,
  phase: "over",
  state,
  sentence,
  playback: undefined,
  idle: false,
  stopping: false,
});

/** What becomes of the session. Nothing leaves `over` but a new start. */
export function step(model: Model, input: Input): Model {
  if (input.type === "start") {
    if (model.phase === "asking" || model.phase === "alive") return model;
    return { ...initial, phase: "asking", service: input.service, profile: input.profile, sentence: "Asking for a session." };
  }
  if (model.phase === "asking") {
    if (input.type === "accepted") {
      const { answer } = input;
      const expires = Date.parse(answer.lease_expires_at);
      return {
        ...model,
        phase: "alive",
        id: answer.session_id,
        state: answer.state,
        expires,
        ttl: Math.max(1000, expires - input.now),
        interval: Math.max(1, answer.heartbeat_interval) * 1000,
        sentence: sessionSentence({ state: answer.state }),
      };
    }
    if (input.type === "refused") return { ...over(model, input.sentence), state: "" };
    return model;
  }
  if (model.phase !== "alive") return model;
  switch (input.type) {
    case "viewed": {
      const { view } = input;
      if (view.session_id !== model.id) return model;
      const sentence = sessionSentence(view);
      if (OVER.includes(view.state)) return over(model, sentence, view.state);
      return {
        ...model,
        state: view.state,
        playback: view.playback_url ?? undefined,
        expires: Math.max(model.expires, Date.parse(view.lease_expires_at)),
        sentence,
      };
    }
    case "acknowledged":
      return { ...model, expires: Math.max(model.expires, input.expires), beats: model.beats + 1, missed: 0 };
    case "unanswered":
      // No answer is no loss: the session lives until its lease ends, and only the server knows when.
      return { ...model, missed: model.missed + 1 };
    case "gone":
      return over(
        model,
        model.idle
          ? "The session ended because nobody was watching."
          : "The session has ended: no heartbeat reached the server in time. Its tuner may be in use by somebody else now.",
      );
    case "forgotten":
      return over(model, "The server no longer knows this session.");
    case "idle":
      return { ...model, idle: true };
    case "stay":
      return { ...model, idle: false };
    case "stop":
      return { ...model, stopping: true, sentence: "Stopping." };
    case "left":
      return over(model, "The session was stopped.");
    default:
      return model;
  }
}

export type Warning = { level: "none" } | { level: "soon" | "overdue"; left: number; why: "idle" | "network" };

/** Whether the viewer must be warned that the session is about to end. `now` is the server's time in ms. */
export function warning(model: Model, now: number): Warning {
  if (model.phase !== "alive" || model.stopping) return { level: "none" };
  const left = model.expires - now;
  const why = model.idle ? "idle" : "network";
  if (left <= 0) return { level: "overdue", left: 0, why };
  // Heartbeats that come through keep more than this; below it, several were lost.
  if (left < model.ttl / 2) return { level: "soon", left, why };
  return { level: "none" };
}

/** How long to wait before the next heartbeat, in ms: the server's interval, or sooner after a failure. */
export function nextBeat(model: Model): number {
  if (model.missed === 0) return model.interval;
  return Math.min(model.interval, 500 * 2 ** Math.min(model.missed - 1, 4));
}
