// Routes in the part of the address after `#`: a link per page, key, camera and filter.

import { signal } from "@preact/signals";

export interface Route {
  page: string;
  arg: string | undefined;
  query: URLSearchParams;
}

export function parse(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#?\/?/, "").split("?", 2) as [string, string?];
  const slash = path.indexOf("/");
  const page = slash < 0 ? path : path.slice(0, slash);
  let arg: string | undefined;
  try {
    arg = slash < 0 ? undefined : decodeURIComponent(path.slice(slash + 1)) || undefined;
  } catch {
    arg = undefined;
  }
  return { page: page || "overview", arg, query: new URLSearchParams(query) };
}

export function href(page: string, arg?: string, query?: Record<string, string | undefined>): string {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query ?? {})) if (value) search.set(name, value);
  const text = search.toString();
  return `#/${page}${arg === undefined ? "" : `/${encodeURIComponent(arg)}`}${text ? `?${text}` : ""}`;
}

export const route = signal<Route>(parse(typeof location === "undefined" ? "" : location.hash));

if (typeof window !== "undefined") {
  window.addEventListener("hashchange", () => {
    route.value = parse(location.hash);
  });
}

/** Goes to a route. `replace` changes the address without a step in the browser's history. */
export function go(target: string, replace = false): void {
  if (replace) {
    history.replaceState(null, "", target);
    route.value = parse(target);
  } else {
    location.hash = target.slice(1);
  }
}
