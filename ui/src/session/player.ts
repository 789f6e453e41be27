// Plays a live HLS playlist of fragmented MP4 with the browser's own Media Source Extensions. What the
// network loses for a while is fetched again; only the session's end, or `signal`, ends the video.

import { Backoff, pause } from "../lib/backoff";

/** How many segments behind the newest one playing begins. */
const BEHIND = 3;
/** How much of what was played is kept, in seconds. */
const KEEP = 30;
/** Further behind than this the viewer is taken forward, in seconds. */
const TOO_FAR = 15;
/** A paused video is not fed further than this, in seconds. */
const AHEAD = 60;
/** How long one file may take, in ms. */
const FILE_MS = 6000;

export interface Playlist {
  first: number;
  target: number;
  init: string | null;
  segments: string[];
  ended: boolean;
}

/** What a playlist says. */
export function parse(text: string): Playlist {
  const list: Playlist = { first: 0, target: 2, init: null, segments: [], ended: false };
  for (const line of text.split("\n").map((line) => line.trim())) {
    const value = line.slice(line.indexOf(":") + 1);
    if (line.startsWith("#EXT-X-MEDIA-SEQUENCE:")) list.first = Number(value);
    else if (line.startsWith("#EXT-X-TARGETDURATION:")) list.target = Number(value);
    else if (line.startsWith("#EXT-X-MAP:")) list.init = /URI="([^"]+)"/.exec(line)?.[1] ?? null;
    else if (line.startsWith("#EXT-X-ENDLIST")) list.ended = true;
    else if (line && !line.startsWith("#")) list.segments.push(line);
  }
  return list;
}

/** The media type of a stream, read from its first bytes. */
export function mediaType(init: Uint8Array): string {
  const find = (name: string): number => {
    const codes = [...name].map((letter) => letter.charCodeAt(0));
    for (let at = 0; at + 4 <= init.length; at += 1) {
      if (codes.every((code, place) => init[at + place] === code)) return at;
    }
    return -1;
  };
  const codecs: string[] = [];
  const picture = find("avcC");
  if (picture >= 0) {
    const profile = [...init.slice(picture + 5, picture + 8)];
    codecs.push(`avc1.${profile.map((byte) => byte.toString(16).padStart(2, "0")).join("")}`);
  }
  if (find("mp4a") >= 0) codecs.push("mp4a.40.2");
  return `video/mp4; codecs="${codecs.join(", ")}"`;
}

/** Playing cannot go on, and trying again would not help. */
export class Unplayable extends Error {}
/** The session is over. */
class Ended extends Error {}
/** This file is not there (any more). */
class Missing extends Error {}

export type Mood = "loading" | "playing" | "waiting";

/** Fetches a file, again and again while there is no answer. */
async function fetched(url: URL, signal: AbortSignal, mood: (mood: Mood) => void): Promise<Response> {
  const backoff = new Backoff({ first: 250, most: 2000 });
  for (;;) {
    const limit = AbortSignal.any([signal, AbortSignal.timeout(FILE_MS)]);
    try {
      const response = await fetch(url, { signal: limit, cache: "no-store" });
      // The body may be cut off as well: it is read here, where that is tried again.
      if (response.ok) return new Response(await response.arrayBuffer());
      if (response.status === 410) throw new Ended("the session is over");
      if (response.status === 404) throw new Missing("there is no such file");
    } catch (error) {
      if (signal.aborted || error instanceof Ended || error instanceof Missing) throw error;
    }
    mood("waiting");
    await pause(backoff.next(), signal);
    signal.throwIfAborted();
  }
}

const once = (target: EventTarget, name: string): Promise<void> =>
  new Promise((resolve, reject) => {
    target.addEventListener(name, () => resolve(), { once: true });
    target.addEventListener("error", () => reject(new Error("the stream cannot be decoded")), { once: true });
  });

/** Plays `url` in `video` until `signal` is aborted or the stream ends. Throws [`Unplayable`]. */
export async function play(video: HTMLVideoElement, url: string, signal: AbortSignal, mood: (mood: Mood) => void): Promise<void> {
  if (!("MediaSource" in window)) {
    // Browsers without it play HLS by themselves.
    video.src = url;
    signal.addEventListener("abort", () => video.removeAttribute("src"), { once: true });
    return;
  }
  const base = new URL(url, location.href);
  const backoff = new Backoff({ first: 500, most: 4000 });
  while (!signal.aborted) {
    mood("loading");
    const source = new MediaSource();
    const object = URL.createObjectURL(source);
    video.src = object;
    try {
      await once(source, "sourceopen");
      await feed(video, source, base, signal, mood, () => backoff.reset());
      return;
    } catch (error) {
      if (signal.aborted || error instanceof Ended) return;
      if (error instanceof Unplayable) throw error;
      // A decoder that stumbled starts anew.
      mood("waiting");
      await pause(backoff.next(), signal);
    } finally {
      URL.revokeObjectURL(object);
      if (signal.aborted) {
        video.removeAttribute("src");
        video.load();
      }
    }
  }
}

async function feed(
  video: HTMLVideoElement,
  source: MediaSource,
  base: URL,
  signal: AbortSignal,
  mood: (mood: Mood) => void,
  good: () => void,
): Promise<void> {
  let buffer: SourceBuffer | undefined;
  let next = 0;
  while (!signal.aborted) {
    let list: Playlist;
    try {
      list = parse(await (await fetched(base, signal, mood)).text());
    } catch (error) {
      // Not written yet.
      if (!(error instanceof Missing)) throw error;
      await pause(500, signal);
      continue;
    }
    if (!buffer) {
      if (!list.init) throw new Unplayable("This stream is not fragmented MP4. Open it in an HLS player.");
      const init = new Uint8Array(await (await fetched(new URL(list.init, base), signal, mood)).arrayBuffer());
      const type = mediaType(init);
      if (!MediaSource.isTypeSupported(type)) throw new Unplayable(`This browser does not play ${type}.`);
      buffer = source.addSourceBuffer(type);
      // One segment after the other, whatever their own clocks say.
      buffer.mode = "sequence";
      await append(buffer, init);
      next = list.first + Math.max(0, list.segments.length - BEHIND);
    }
    // What was removed while this page was away is skipped.
    next = Math.max(next, list.first);
    for (; next < list.first + list.segments.length && !signal.aborted; next += 1) {
      const name = list.segments[next - list.first];
      if (name === undefined) break;
      try {
        const segment = await fetched(new URL(name, base), signal, mood);
        await append(buffer, await segment.arrayBuffer());
      } catch (error) {
        if (error instanceof Missing) break;
        throw error;
      }
      good();
      mood("playing");
      await keepUp(video, buffer, signal);
    }
    if (list.ended) return;
    await pause(list.target * 500, signal);
  }
}

async function append(buffer: SourceBuffer, bytes: BufferSource): Promise<void> {
  buffer.appendBuffer(bytes);
  await once(buffer, "updateend");
}

/** Forgets what was played, and stays near the newest picture. */
async function keepUp(video: HTMLVideoElement, buffer: SourceBuffer, signal: AbortSignal): Promise<void> {
  const ranges = buffer.buffered;
  if (ranges.length === 0) return;
  const end = ranges.end(ranges.length - 1);
  if (video.paused && video.currentTime === 0) video.play().catch(() => {});
  while (video.paused && end - video.currentTime > AHEAD && !signal.aborted) await pause(500, signal);
  if (!video.paused && end - video.currentTime > TOO_FAR) video.currentTime = end - 2;
  if (video.currentTime - ranges.start(0) > 2 * KEEP) {
    buffer.remove(0, video.currentTime - KEEP);
    await once(buffer, "updateend");
  }
}
