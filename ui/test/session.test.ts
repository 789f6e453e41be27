import { describe, expect, it } from "vitest";
import type { IntentAnswer, SessionView } from "../src/api/types";
import { initial, nextBeat, step, warning, type Input, type Model } from "../src/session/machine";

const START = Date.parse("2026-01-01T00:00:00Z");
const at = (ms: number): string => new Date(START + ms).toISOString();
const answer = { session_id: "s1", state: "new", lease_expires_at: at(60_000), heartbeat_interval: 5, status: "accepted", correlation_id: "c" } as IntentAnswer;
const view = (state: string, more: Partial<SessionView> = {}): SessionView => ({ session_id: "s1", state, lease_expires_at: at(60_000), service_ref: "x", profile: "auto", ...more }) as SessionView;
const run = (...inputs: Input[]): Model => inputs.reduce(step, initial);
const alive: Input[] = [
  { type: "start", service: "x", profile: "auto" },
  { type: "accepted", answer, now: START },
];

describe("a session", () => {
  it("is asked for, accepted, and runs with a playback address", () => {
    const model = run(...alive, { type: "viewed", view: view("running", { playback_url: "/p" }) });
    expect(model).toMatchObject({ phase: "alive", id: "s1", ttl: 60_000, interval: 5000, playback: "/p", sentence: "The stream is running." });
  });

  it("is not started twice at a time", () => {
    expect(run(...alive, { type: "start", service: "y", profile: "low" }).service).toBe("x");
  });

  it("says refusals as they are", () => {
    expect(run(alive[0] as Input, { type: "refused", sentence: "No." })).toMatchObject({ phase: "over", sentence: "No.", state: "" });
    const busy = run(...alive, { type: "viewed", view: view("ended", { reason: "R_NO_TUNER" }) });
    expect(busy).toMatchObject({ phase: "over", state: "ended", sentence: "All tuners are in use. Try again when one is free." });
  });

  it("counts heartbeats, and its end moves only forward", () => {
    const model = run(...alive, { type: "acknowledged", expires: START + 65_000 }, { type: "acknowledged", expires: START + 64_000 });
    expect(model).toMatchObject({ beats: 2, expires: START + 65_000, missed: 0 });
  });

  it("is not lost by calls without an answer, also past its end", () => {
    const lost: Input[] = Array.from({ length: 40 }, () => ({ type: "unanswered" }));
    const model = run(...alive, ...lost);
    expect(model.phase).toBe("alive");
    expect(warning(model, START + 70_000)).toEqual({ level: "overdue", left: 0, why: "network" });
    expect(run(...alive, ...lost, { type: "acknowledged", expires: START + 120_000 })).toMatchObject({ phase: "alive", missed: 0 });
  });

  it("warns once heartbeats were missed for half of its time", () => {
    const model = run(...alive);
    expect(warning(model, START + 20_000)).toEqual({ level: "none" });
    expect(warning(model, START + 40_000)).toEqual({ level: "soon", left: 20_000, why: "network" });
    expect(warning(step(model, { type: "idle" }), START + 40_000)).toMatchObject({ level: "soon", why: "idle" });
    expect(warning(step(model, { type: "stop" }), START + 40_000)).toEqual({ level: "none" });
  });

  it("is over for good after 410, and nothing brings it back", () => {
    const over = run(...alive, { type: "gone" });
    expect(over.phase).toBe("over");
    for (const input of [{ type: "acknowledged", expires: START + 1e9 }, { type: "viewed", view: view("running") }, { type: "stay" }] as Input[]) {
      expect(step(over, input)).toBe(over);
    }
    expect(step(over, { type: "start", service: "x", profile: "auto" }).phase).toBe("asking");
  });

  it("ignores what another session says", () => {
    const model = run(...alive);
    expect(step(model, { type: "viewed", view: view("failed", { session_id: "s2" }) })).toBe(model);
  });

  it("sends heartbeats at the server's interval, and sooner after a failure", () => {
    const model = run(...alive);
    expect(nextBeat(model)).toBe(5000);
    expect(nextBeat({ ...model, missed: 1 })).toBe(500);
    expect(nextBeat({ ...model, missed: 3 })).toBe(2000);
    expect(nextBeat({ ...model, missed: 30 })).toBe(5000);
  });
});
