// Calls of the server. The login is a cookie that scripts cannot read; every call has a time limit.

import { signal } from "@preact/signals";
import { local, skew } from "../lib/time";
import type { paths } from "./schema";
import type { Me, Problem } from "./types";

/** How long a call may take before the server counts as frozen, in ms. */
const CALL_MS = 8000;
/** The same for the question whether it is there at all. */
const HEALTH_MS = 3000;
/** How often that is asked, in ms: when all is well, and when it is not. */
const HEALTH_EVERY = [5000, 1500] as const;
/** Remembers that this browser is logged in, so that a first visit asks nothing that would be refused. */
const LOGIN_FLAG = "leasehold.login";

export type Link = { state: "ok" } | { state: "gone" | "frozen" | "not-ready"; since: number; detail: string };

/** Whether the server answers. */
export const link = signal<Link>({ state: "ok" });
/** When the server was last heard of, in ms of this machine. */
export const heard = signal(local());
/** Who is logged in: nobody, or not known yet. */
export const me = signal<Me | null | undefined>(undefined);
/** Set when a login that was good is no longer known: the login form then says so. */
export const loginLost = signal(false);

/** No answer came. */
export class Unreachable extends Error {
  constructor(readonly kind: "gone" | "frozen") {
    super(kind === "gone" ? "The server cannot be reached." : "The server does not answer.");
  }
}

/** The server said no. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    readonly problem: Problem | undefined,
  ) {
    super(sentence(status, problem));
  }
}

function sentence(status: number, problem: Problem | undefined): string {
  if (status === 401) return "This login is no longer known.";
  if (status === 403) return `Your API key may not do this${problem?.detail ? `: ${problem.detail}` : ""}.`;
  const text = problem?.detail ?? problem?.title ?? `The server answered ${status}`;
  const upper = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(upper) ? upper : `${upper}.`;
}

export interface Answer<T> {
  status: number;
  data: T;
  etag: string | undefined;
}

export interface Options {
  path?: Record<string, string>;
  query?: Record<string, string | number | undefined>;
  body?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal | undefined;
  timeout?: number;
}

/** A path with its values. */
export function fill(path: string, options: Pick<Options, "path" | "query"> = {}): string {
  const filled = path.replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(options.path?.[name] ?? ""));
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(options.query ?? {})) {
    if (value !== undefined && value !== "") query.set(name, String(value));
  }
  const text = query.toString();
  return text ? `${filled}?${text}` : filled;
}

function reached(): void {
  heard.value = local();
  if (link.value.state !== "ok") link.value = { state: "ok" };
}

function missed(kind: "gone" | "frozen"): void {
  const detail = kind === "gone" ? "The server cannot be reached." : "The server accepts connections but does not answer.";
  const before = link.value;
  if (before.state === kind) return;
  link.value = { state: kind, since: before.state === "ok" ? local() : before.since, detail };
}

/** The raw request: the head of an answer, or [`Unreachable`]. `limit` is for the head only. */
export async function request(path: string, init: RequestInit, limit: number, outer?: AbortSignal): Promise<Response> {
  const controller = new AbortController();
  let late = false;
  const timer = setTimeout(() => {
    late = true;
    controller.abort();
  }, limit);
  const abort = () => controller.abort();
  outer?.addEventListener("abort", abort, { once: true });
  if (outer?.aborted) abort();
  const sent = local();
  try {
    const response = await fetch(path, { ...init, signal: controller.signal, credentials: "same-origin" });
    skew.sample(sent, local(), Date.parse(response.headers.get("date") ?? ""));
    reached();
    return response;
  } catch (error) {
    if (outer?.aborted) throw error;
    const kind = late ? "frozen" : "gone";
    missed(kind);
    throw new Unreachable(kind);
  } finally {
    clearTimeout(timer);
  }
}

/** A call with JSON both ways. Throws [`Unreachable`] or [`Refused`]. */
export async function call<T>(method: string, path: string, options: Options = {}): Promise<Answer<T>> {
  const headers: Record<string, string> = { accept: "application/json", ...options.headers };
  const init: RequestInit = { method, headers, cache: "no-store" };
  if (options.body !== undefined) {
    headers["content-type"] = "application/json";
    init.body = JSON.stringify(options.body);
  }
  const limit = options.timeout ?? CALL_MS;
  const begun = local();
  const response = await request(fill(path, options), init, limit, options.signal);
  // A server that froze in the middle of its answer must not hold the page either.
  const text = await within(response.text(), Math.max(1000, limit - (local() - begun)));
  let data: unknown;
  try {
    data = text ? JSON.parse(text) : undefined;
  } catch {
    data = undefined;
  }
  if (!response.ok) {
    if (response.status === 401 && me.value) {
      loginLost.value = true;
      me.value = null;
    }
    throw new Refused(response.status, data as Problem | undefined);
  }
  return { status: response.status, data: data as T, etag: response.headers.get("etag") ?? undefined };
}

function within<T>(promise: Promise<T>, ms: number): Promise<T> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => {
      missed("frozen");
      reject(new Unreachable("frozen"));
    }, ms);
    promise.then(resolve, () => reject(new Unreachable("gone"))).finally(() => clearTimeout(timer));
  });
}

type Json<P extends keyof paths, M extends "get" | "put" | "post" | "delete"> = paths[P] extends Record<
  M,
  { responses: { 200: { content: { "application/json": infer T } } } }
>
  ? T
  : unknown;

/** Reads a resource: its type comes from the specification. */
export const get = async <P extends keyof paths>(path: P, options?: Options): Promise<Json<P, "get">> =>
  (await call<Json<P, "get">>("GET", path, options)).data;

/** Changes something. */
export const post = async <P extends keyof paths>(path: P, options?: Options): Promise<Json<P, "post">> =>
  (await call<Json<P, "post">>("POST", path, options)).data;

// The login.

const storage = {
  get: (): boolean => {
    try {
      return localStorage.getItem(LOGIN_FLAG) !== null;
    } catch {
      return false;
    }
  },
  set: (on: boolean): void => {
    try {
      if (on) localStorage.setItem(LOGIN_FLAG, "1");
      else localStorage.removeItem(LOGIN_FLAG);
    } catch {
      // Without storage the page asks for the key on every visit.
    }
  },
};

/** Finds out who is logged in. */
export async function recognise(): Promise<void> {
  if (!storage.get()) {
    me.value = null;
    return;
  }
  try {
    me.value = await get("/api/v1/me");
  } catch (error) {
    if (error instanceof Refused && error.status === 401) {
      storage.set(false);
      loginLost.value = true;
      me.value = null;
    } else {
      setTimeout(() => void recognise(), 1500);
    }
  }
}

/** Exchanges an API key for a login. */
export async function logIn(key: string): Promise<void> {
  await call("POST", "/api/v3/auth/session", { headers: { authorization: `Bearer ${key}` } });
  storage.set(true);
  const found = await get("/api/v1/me");
  loginLost.value = false;
  me.value = found;
}

export async function logOut(): Promise<void> {
  storage.set(false);
  try {
    await call("DELETE", "/api/v3/auth/session");
  } finally {
    loginLost.value = false;
    me.value = null;
  }
}

const LEVELS = ["read", "write", "admin"];

/** Whether the login reaches this far: `may("leases:admin")`. */
export function may(scope: string): boolean {
  const [area, level] = scope.split(":") as [string, string];
  return (me.value?.scopes ?? []).some((own) => {
    const [ownArea, ownLevel] = own.split(":") as [string, string];
    return ownArea === area && LEVELS.indexOf(ownLevel) >= LEVELS.indexOf(level);
  });
}

/** Asks again and again whether the server is there and ready. */
export async function watchHealth(): Promise<never> {
  for (;;) {
    try {
      const response = await request("/readyz", { cache: "no-store" }, HEALTH_MS);
      if (!response.ok) {
        const problem = (await response.json().catch(() => undefined)) as Problem | undefined;
        link.value = { state: "not-ready", since: local(), detail: sentence(response.status, problem) };
      }
    } catch {
      // Noted by `request`.
    }
    const every = link.value.state === "ok" ? HEALTH_EVERY[0] : HEALTH_EVERY[1];
    await new Promise((resolve) => setTimeout(resolve, every));
  }
}
