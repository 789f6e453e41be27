// Data that is asked for again and again, and knows how old it is.

import { useEffect, useRef, useState } from "preact/hooks";
import { Refused, Unreachable, link, me } from "../api/client";
import { follow, type Batch } from "./stream";
import { local } from "./time";

export interface Loaded<T> {
  data: T | undefined;
  /** When it was read, in ms of this machine. */
  at: number | undefined;
  /** Why there is no newer one. */
  error: Error | undefined;
  /** Asks again right now. */
  again: () => void;
}

export interface LoadOptions {
  /** How often to ask, in ms. */
  every?: number;
  /** Ask soon after such a change. */
  on?: (batch: Batch) => boolean;
  /** The shortest time between two questions because of changes, in ms. */
  gap?: number;
  /** Hold new data back while this says so. */
  hold?: () => boolean;
}

/** Reads with `read` whenever `key` changes, at intervals and after changes. The last good answer stays. */
export function useLoad<T>(key: string, read: (signal: AbortSignal) => Promise<T>, options: LoadOptions = {}): Loaded<T> {
  const { every = 5000, on, gap = 500, hold } = options;
  const [state, setState] = useState<Omit<Loaded<T>, "again"> & { key: string }>({ key, data: undefined, at: undefined, error: undefined });
  const latest = useRef({ read, on, hold });
  latest.current = { read, on, hold };
  const again = useRef<() => void>(() => {});

  useEffect(() => {
    const controller = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    let busy = false;
    let last = 0;
    const schedule = (ms: number) => {
      clearTimeout(timer);
      timer = setTimeout(ask, ms);
    };
    let wanted = false;
    const ask = async () => {
      if (busy) {
        wanted = true;
        return;
      }
      if (document.hidden || !me.value) return schedule(every);
      if (latest.current.hold?.()) return schedule(300);
      busy = true;
      wanted = false;
      last = local();
      try {
        const data = await latest.current.read(controller.signal);
        if (controller.signal.aborted) return;
        if (latest.current.hold?.()) return schedule(300);
        setState({ key, data, at: local(), error: undefined });
      } catch (error) {
        if (controller.signal.aborted) return;
        if (!(error instanceof Unreachable) && !(error instanceof Refused)) console.error(error);
        setState((before) => ({ ...before, key, data: before.key === key ? before.data : undefined, error: error as Error }));
      } finally {
        busy = false;
        if (!controller.signal.aborted) schedule(wanted ? gap : every);
      }
      return undefined;
    };
    again.current = () => schedule(0);
    const changed = (batch: Batch) => {
      if (latest.current.on?.(batch)) schedule(Math.max(0, gap - (local() - last)));
    };
    const unfollow = latest.current.on ? follow(changed) : undefined;
    const visible = () => !document.hidden && schedule(0);
    document.addEventListener("visibilitychange", visible);
    // A server that is back is asked right away.
    let reachable = link.value.state === "ok";
    const unlink = link.subscribe(({ state }) => {
      if (state === "ok" && !reachable) schedule(0);
      reachable = state === "ok";
    });
    void ask();
    return () => {
      controller.abort();
      clearTimeout(timer);
      unfollow?.();
      unlink();
      document.removeEventListener("visibilitychange", visible);
    };
  }, [key, every, gap]);

  return { ...state, again: () => again.current() };
}
