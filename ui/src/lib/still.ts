// The newest still of a camera, as its holder sent it.

import { useEffect, useRef } from "preact/hooks";
import { Refused, fill, request } from "../api/client";
import { useLoad } from "./load";
import type { Point } from "./polygon";

/** How often it is asked for, in ms. */
const EVERY = 15_000;
/** How long the answer may take, in ms. */
const LIMIT = 8000;

export interface Still {
  camera: string;
  /** A blob of this page. */
  url: string;
  /** The camera's own picture in pixels, in which zones count; the still may be smaller. */
  size: Point;
  /** When it came, in ms of the server. */
  at: number;
}

/** `1920x1080` as two numbers. */
export function sizeOf(text: string | null): Point | undefined {
  const found = /^(\d{1,5})x(\d{1,5})$/.exec(text ?? "");
  const [width, height] = [Number(found?.[1]), Number(found?.[2])];
  return width > 0 && height > 0 ? [width, height] : undefined;
}

async function read(camera: string, before: Still | null, signal: AbortSignal): Promise<Still | null> {
  const path = fill("/api/v1/cameras/{camera_uuid}/picture", { path: { camera_uuid: camera } });
  const answer = await request(path, { cache: "no-store" }, LIMIT, signal);
  if (!answer.ok) throw new Refused(answer.status, undefined);
  const size = sizeOf(answer.headers.get("picture-size"));
  if (answer.status === 204 || !size) return null;
  const at = Date.parse(answer.headers.get("picture-at") ?? "");
  if (before?.camera === camera && before.at === at) {
    // The same one: drawn again, it would flicker.
    void answer.body?.cancel();
    return before;
  }
  return { camera, url: URL.createObjectURL(await answer.blob()), size, at };
}

/** The still of a camera: nothing while it is not known whether there is one, `null` when there is none. */
export function useStill(camera: string | undefined): Still | null | undefined {
  const shown = useRef<Still | null>(null);
  const { data, error } = useLoad(`still ${camera ?? ""}`, async (signal) => (camera ? read(camera, shown.current, signal) : null), { every: EVERY });
  shown.current = data ?? null;
  useEffect(() => () => void (data && URL.revokeObjectURL(data.url)), [data]);
  return data ?? (error ? null : data);
}
