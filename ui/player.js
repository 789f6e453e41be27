// Plays a live HLS playlist of fragmented MP4 with the browser's own Media Source Extensions.

/** How many segments behind the newest one playing begins. */
const BEHIND = 3;
/** How much of what was played is kept, in seconds. */
const KEEP = 30;
/** Further behind than this the viewer is taken forward, in seconds. */
const TOO_FAR = 15;

const once = (target, name) =>
  new Promise((resolve, reject) => {
    target.addEventListener(name, resolve, { once: true });
    target.addEventListener("error", () => reject(new Error("the stream cannot be decoded")), { once: true });
  });

const pause = (ms, signal) =>
  new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });

/** What a playlist says. */
export function parse(text) {
  const list = { first: 0, target: 2, init: null, segments: [], ended: false };
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
export function mediaType(init) {
  const find = (name) => {
    const codes = [...name].map((letter) => letter.charCodeAt(0));
    for (let at = 0; at + 4 <= init.length; at += 1) {
      if (codes.every((code, place) => init[at + place] === code)) return at;
    }
    return -1;
  };
  const codecs = [];
  const picture = find("avcC");
  if (picture >= 0) {
    const profile = [...init.slice(picture + 5, picture + 8)];
    codecs.push(`avc1.${profile.map((byte) => byte.toString(16).padStart(2, "0")).join("")}`);
  }
  if (find("mp4a") >= 0) codecs.push("mp4a.40.2");
  return `video/mp4; codecs="${codecs.join(", ")}"`;
}

async function fetched(url, signal) {
  const answer = await fetch(url, { signal, cache: "no-store" });
  if (!answer.ok) throw new Error(`${url}: ${answer.status}`);
  return answer;
}

/** Plays `url` in `video` until `signal` is aborted. Throws when that cannot go on. */
export async function play(video, url, signal) {
  if (!("MediaSource" in window)) {
    // Browsers without it play HLS by themselves.
    video.src = url;
    signal.addEventListener("abort", () => video.removeAttribute("src"), { once: true });
    return;
  }
  const base = new URL(url, location.href);
  const source = new MediaSource();
  const object = URL.createObjectURL(source);
  video.src = object;
  try {
    await once(source, "sourceopen");
    await feed(video, source, base, signal);
  } catch (error) {
    if (!signal.aborted) throw error;
  } finally {
    URL.revokeObjectURL(object);
    if (signal.aborted) {
      video.removeAttribute("src");
      video.load();
    }
  }
}

async function feed(video, source, base, signal) {
  let buffer = null;
  let next = null;
  while (!signal.aborted) {
    const list = parse(await (await fetched(base, signal)).text());
    if (!buffer) {
      if (!list.init) throw new Error("this stream is not fragmented MP4; open it in an HLS player");
      const init = new Uint8Array(await (await fetched(new URL(list.init, base), signal)).arrayBuffer());
      const type = mediaType(init);
      if (!MediaSource.isTypeSupported(type)) throw new Error(`this browser does not play ${type}`);
      buffer = source.addSourceBuffer(type);
      // One segment after the other, whatever their own clocks say.
      buffer.mode = "sequence";
      await append(buffer, init);
      next = list.first + Math.max(0, list.segments.length - BEHIND);
    }
    next = Math.max(next, list.first);
    for (; next < list.first + list.segments.length && !signal.aborted; next += 1) {
      const segment = await fetched(new URL(list.segments[next - list.first], base), signal);
      await append(buffer, await segment.arrayBuffer());
      await keepUp(video, buffer);
    }
    if (list.ended) return;
    await pause(list.target * 500, signal);
  }
}

async function append(buffer, bytes) {
  buffer.appendBuffer(bytes);
  await once(buffer, "updateend");
}

/** Forgets what was played, and stays near the newest picture. */
async function keepUp(video, buffer) {
  const ranges = buffer.buffered;
  if (ranges.length === 0) return;
  const end = ranges.end(ranges.length - 1);
  if (video.paused && video.currentTime === 0) video.play().catch(() => {});
  if (end - video.currentTime > TOO_FAR) video.currentTime = end - 2;
  if (video.currentTime - ranges.start(0) > 2 * KEEP) {
    buffer.remove(0, video.currentTime - KEEP);
    await once(buffer, "updateend");
  }
}
