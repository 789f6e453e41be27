import { describe, expect, it } from "vitest";
import { Backoff, pause } from "../src/lib/backoff";
import { fault, outside, type Point } from "../src/lib/polygon";
import { href, parse as route } from "../src/lib/router";
import { SseParser } from "../src/lib/sse";
import { sizeOf } from "../src/lib/still";
import { check, type CameraForm } from "../src/lib/validate";
import { endSentence, sessionSentence } from "../src/lib/words";
import { mediaType, parse as playlist } from "../src/session/player";

describe("back-off", () => {
  it("doubles up to its limit and begins anew after a success", () => {
    const backoff = new Backoff({ first: 100, most: 1000, random: () => 1 });
    expect([1, 2, 3, 4, 5, 6].map(() => backoff.next())).toEqual([100, 200, 400, 800, 1000, 1000]);
    backoff.reset();
    expect(backoff.next()).toBe(100);
  });

  it("never leaves less than three quarters to chance, and can be cut short", async () => {
    const backoff = new Backoff({ first: 100, most: 1000, random: () => 0 });
    expect(backoff.next()).toBe(75);
    const controller = new AbortController();
    const waiting = pause(60_000, controller.signal);
    controller.abort();
    expect(await waiting).toBe(false);
    expect(await pause(1)).toBe(true);
  });
});

describe("server-sent events", () => {
  const text = ": open\n\nid: 7\nevent: lease_acquired\ndata: {\"a\":1}\n\ndata: one\r\ndata: two\r\n\r\nevent: goodbye\ndata: {}\n\n";
  const whole = [
    { id: "7", event: "lease_acquired", data: '{"a":1}' },
    { id: undefined, event: "message", data: "one\ntwo" },
    { id: undefined, event: "goodbye", data: "{}" },
  ];

  it("are read however the text is cut", () => {
    for (let size = 1; size <= text.length; size += 1) {
      const parser = new SseParser();
      const found = [];
      for (let from = 0; from < text.length; from += size) found.push(...parser.push(text.slice(from, from + size)));
      expect(found, `pieces of ${size}`).toEqual(whole);
    }
  });
});

describe("outlines", () => {
  const square: Point[] = [[0, 0], [10, 0], [10, 10], [0, 10]];
  it("are simple polygons", () => {
    expect(fault(square)).toBeUndefined();
    expect(fault(square.slice(0, 2))).toMatch(/needs 3 points; this one has 2/);
    expect(fault([[0, 0], [10, 10], [10, 0], [0, 10]])).toMatch(/crosses/);
    expect(fault([[0, 0], [0, 0], [10, 0], [0, 10]])).toMatch(/are the same/);
    expect(fault([[0, 0], [10, 0], [5, 0]])).toMatch(/folds back/);
    expect(fault([[0, 0], [10, 0], [10, 10], [5, 0]])).toMatch(/crosses|folds/);
    expect(fault([[0, 0], [Number.NaN, 0], [10, 10]])).toMatch(/two numbers/);
    expect(fault(Array.from({ length: 513 }, (_, place) => [place, place % 2] as Point))).toMatch(/at most 512/);
  });

  it("lie inside of the camera's picture, its edges included", () => {
    expect(outside(square, [10, 10])).toBe(false);
    expect(outside(square, [10, 9])).toBe(true);
    expect(outside([[-1, 0]], [10, 10])).toBe(true);
    expect(sizeOf("1920x1080")).toEqual([1920, 1080]);
    for (const wrong of [null, "", "0x10", "10", "10x", "axb", "999999x1"]) expect(sizeOf(wrong)).toBeUndefined();
  });
});

describe("a camera's form", () => {
  const good: CameraForm = { camera_uuid: "cam-1", rtsp_url: "rtsp://h/1", min_score: 0.3, iou_threshold: 0.1, zone_test: "center", allow_labels: [], required_capabilities: [], deployment_group: "", zones: [] };
  it("is checked field by field", () => {
    expect(check(good)).toEqual({});
    const zone = { zone_id: 1, name: "a", kind: "include" as const, priority: 100, polygon: [[0, 0], [1, 0], [0, 1]] as Point[], allow_labels: [], min_score: null };
    const wrong = check({ ...good, camera_uuid: "a b", rtsp_url: "ftp://x", min_score: 1.2, iou_threshold: Number.NaN, deployment_group: "?", zones: [zone, { ...zone, name: "", polygon: [] }] });
    expect(Object.keys(wrong).sort()).toEqual(["camera_uuid", "deployment_group", "iou_threshold", "min_score", "rtsp_url", "zones[1].name", "zones[1].polygon", "zones[1].zone_id"]);
  });
});

describe("routes", () => {
  it("carry keys of any shape", () => {
    for (const key of ["job:a/b", "service:1:0:19:132F", "x:50% ?#&ü"]) expect(route(href("lease", key)).arg).toBe(key);
    expect(route("")).toMatchObject({ page: "overview", arg: undefined });
    expect(route(href("leases", undefined, { q: "a b", kind: "" })).query.get("q")).toBe("a b");
    expect(route("#/lease/%E0%A4%A").arg).toBeUndefined();
  });
});

describe("playlists", () => {
  it("are read as far as they are needed", () => {
    const list = playlist("#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXT-X-MEDIA-SEQUENCE:42\n#EXT-X-MAP:URI=\"init.mp4\"\n#EXTINF:1.0,\nseg42.m4s\n#EXTINF:1.0,\nseg43.m4s\n");
    expect(list).toEqual({ first: 42, target: 1, init: "init.mp4", segments: ["seg42.m4s", "seg43.m4s"], ended: false });
  });

  it("name their codecs", () => {
    const bytes = [..."....avcC"].map((letter) => letter.charCodeAt(0));
    expect(mediaType(new Uint8Array([...bytes, 1, 0x42, 0xc0, 0x1e, ...[..."mp4a"].map((letter) => letter.charCodeAt(0))]))).toBe('video/mp4; codecs="avc1.42c01e, mp4a.40.2"');
  });
});

describe("sentences", () => {
  it("hold no codes", () => {
    for (const reason of ["R_LEASE_BUSY", "R_NO_TUNER", "R_LEASE_EXPIRED", "R_LEASE_LOST", "R_CLIENT_STOP", "R_PIPELINE_FAILED", "R_PIPELINE_TIMEOUT", "R_WORKER_LOST", "R_SHUTDOWN"] as const) {
      expect(sessionSentence({ state: "stopped", reason })).toMatch(/^[A-Z][^_]*\.$/);
    }
    const owner = { lease_id: "l", holder: "h", incarnation: "1", token: 1, from: "2026-01-01T00:00:00Z", until: "2026-01-01T00:00:01Z", ended_by: "lease_revoked" as const, detail: "because" };
    expect(endSentence(owner)).toBe("Revoked: because.");
  });
});
