// The frame around every page: navigation, login, and what is wrong with the connection.

import { useEffect, useState } from "preact/hooks";
import type { ComponentType } from "preact";
import { link, logIn, logOut, loginLost, may, me } from "./api/client";
import { href, route } from "./lib/router";
import { streamState } from "./lib/stream";
import { clock, duration, local, now } from "./lib/time";
import { CameraPage } from "./pages/camera";
import { Cameras } from "./pages/cameras";
import { DeploymentPage } from "./pages/deployment";
import { Deployments } from "./pages/deployments";
import { Events } from "./pages/events";
import { LeasePage } from "./pages/lease";
import { Leases } from "./pages/leases";
import { Nodes } from "./pages/nodes";
import { OverviewPage } from "./pages/overview";
import { Sessions } from "./pages/sessions";
import { leave, session } from "./session/session";
import { Field, Toasts } from "./ui/parts";
import { ThemeButton } from "./ui/theme";

interface Place {
  page: string;
  name: string;
  letter: string;
  icon: string;
  scope: string;
  also?: string[];
}

const PLACES: Place[] = [
  { page: "overview", name: "Overview", letter: "o", icon: "M3 11h5V3H3v8Zm0 6h5v-4H3v4Zm7 0h7V9h-7v8Zm0-14v4h7V3h-7Z", scope: "leases:read" },
  { page: "leases", name: "Leases", letter: "l", icon: "M3 5h14M3 10h14M3 15h9", scope: "leases:read", also: ["lease"] },
  { page: "nodes", name: "Nodes", letter: "n", icon: "M4 4h12v4H4V4Zm0 8h12v4H4v-4Zm3-6h.01M7 14h.01", scope: "leases:read" },
  { page: "deployments", name: "Deployments", letter: "d", icon: "M10 16V5M5 9.5 10 4l5 5.5M4 17h12", scope: "runners:read", also: ["deployment"] },
  { page: "cameras", name: "Cameras", letter: "c", icon: "M3 6h9v8H3V6Zm9 3 5-3v8l-5-3V9Z", scope: "runners:read", also: ["camera"] },
  { page: "sessions", name: "Sessions", letter: "s", icon: "M3 4h14v9H3V4Zm4 13h6M8.5 6.5v4l3.5-2-3.5-2Z", scope: "v3:read" },
  { page: "events", name: "Events", letter: "e", icon: "M3 10h3l2-6 4 12 2-6h3", scope: "leases:read" },
];

const PAGES: Record<string, ComponentType> = {
  overview: OverviewPage,
  leases: Leases,
  lease: LeasePage,
  nodes: Nodes,
  deployments: Deployments,
  deployment: DeploymentPage,
  cameras: Cameras,
  camera: CameraPage,
  sessions: Sessions,
  events: Events,
};

const current = (place: Place): boolean => route.value.page === place.page || Boolean(place.also?.includes(route.value.page));

function useShortcuts(): void {
  useEffect(() => {
    let first = 0;
    const pressed = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) || document.querySelector("dialog[open]")) return;
      if (event.key === "/") {
        const search = document.querySelector<HTMLInputElement>("main input[type=search]");
        if (search) {
          event.preventDefault();
          search.focus();
        }
      } else if (event.key === "g") {
        first = local();
      } else if (local() - first < 1200) {
        first = 0;
        const place = PLACES.find((it) => it.letter === event.key);
        if (place) location.hash = href(place.page).slice(1);
      }
    };
    document.addEventListener("keydown", pressed);
    return () => document.removeEventListener("keydown", pressed);
  }, []);
}

export function App() {
  useShortcuts();
  const { page } = route.value;
  const Page = PAGES[page];
  const place = PLACES.find(current);
  useEffect(() => {
    document.title = place ? `${route.value.arg ?? place.name} · Leasehold` : "Leasehold";
  }, [place, route.value]);
  const known = me.value;
  return (
    <div class="frame">
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), document.getElementById("main")?.focus())}>
        Skip to the content
      </a>
      <header class="side">
        <a class="brand" href={href("overview")}>
          <img src="/favicon.svg" alt="" width="26" height="26" />
          <span>Leasehold</span>
        </a>
        {known && (
          <nav aria-label="Pages">
            {PLACES.filter((it) => may(it.scope)).map((it) => (
              <a key={it.page} href={href(it.page)} aria-current={current(it) ? "page" : undefined} title={`${it.name} (g ${it.letter})`}>
                <svg viewBox="0 0 20 20" width="18" height="18" aria-hidden="true">
                  <path d={it.icon} fill="none" stroke="currentColor" stroke-width="1.5" stroke-linejoin="round" stroke-linecap="round" />
                </svg>
                <span>{it.name}</span>
              </a>
            ))}
          </nav>
        )}
        <div class="side-foot">
          {known && <Who />}
          <ThemeButton />
        </div>
      </header>
      <div class="content">
        <Banner />
        <main id="main" tabIndex={-1}>
          {known === undefined ? <p class="empty">Asking the server …</p> : known === null ? <Login /> : Page ? <Page key={page} /> : <NotThere />}
        </main>
      </div>
      <Toasts />
    </div>
  );
}

function Who() {
  const known = me.value;
  const readOnly = !known?.scopes.some((scope) => !scope.endsWith(":read"));
  return (
    <div class="who">
      <span class="who-name" title={known?.scopes.join(", ")}>
        {known?.credential}
        {known?.tenant_id ? ` · ${known.tenant_id}` : ""}
      </span>
      {readOnly && <span class="badge quiet">Read-only</span>}
      <a href="/api/docs" target="_blank" rel="noreferrer">
        HTTP API
      </a>
      <button
        type="button"
        class="link"
        onClick={() => {
          leave();
          void logOut();
        }}
      >
        Log out
      </button>
    </div>
  );
}

/** What is wrong with the connection, as long as it is. */
function Banner() {
  const state = link.value;
  if (state.state === "ok") {
    if (me.value && streamState.value === "lost") {
      return (
        <div class="banner warn" role="status">
          The live stream was cut. It is being resumed; nothing is skipped.
        </div>
      );
    }
    return null;
  }
  void now.value;
  const since = local() - state.since;
  const playing = session.value.phase === "alive" ? " Your session is kept: heartbeats are sent as soon as the server answers." : "";
  return (
    <div class="banner bad" role="alert">
      <strong>{state.detail}</strong> Since {clock(state.since)} ({duration(since)}). What you see may be old; the page goes on by itself.{playing}
    </div>
  );
}

function Login() {
  const [key, setKey] = useState("");
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const submit = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    setProblem("");
    try {
      await logIn(key.trim());
      setKey("");
    } catch (error) {
      setProblem((error as { status?: number }).status === 401 ? "This API key is not known here." : (error as Error).message);
    } finally {
      setBusy(false);
    }
  };
  return (
    <div class="login">
      <form class="card login-card" onSubmit={submit}>
        <img src="/favicon.svg" alt="" width="44" height="44" />
        <h1>Log in</h1>
        <p class="note">{loginLost.value ? "Your login is no longer known, perhaps because the server was restarted. Log in again to go on where you were." : "See who owns what right now, until when and under which token."}</p>
        <Field label="API key" fault={problem || undefined}>
          {(id, described) => (
            <input id={id} aria-describedby={described} type="password" autocomplete="current-password" required autofocus value={key} onInput={(event) => setKey(event.currentTarget.value)} />
          )}
        </Field>
        <button class="button primary wide" disabled={busy}>
          {busy ? "Logging in …" : "Log in"}
        </button>
        <p class="hint">
          The server's first start wrote one into its data folder. On that machine: <code>cat ~/.local/share/leasehold/admin.token</code>
        </p>
      </form>
    </div>
  );
}

const NotThere = () => (
  <div class="empty">
    <p class="empty-title">There is no such page</p>
    <a href={href("overview")}>To the overview</a>
  </div>
);
