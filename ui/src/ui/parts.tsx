// Small parts that every page uses.

import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { Refused, link } from "../api/client";
import type { Loaded } from "../lib/load";
import { href } from "../lib/router";
import { ago, clock, count, duration, local, now, until } from "../lib/time";
import type { Tone } from "../lib/words";

export const Badge = ({ tone, children }: { tone: Tone; children: ComponentChildren }) => <span class={`badge ${tone}`}>{children}</span>;

export function Card(props: { title?: ComponentChildren; action?: ComponentChildren; class?: string; children: ComponentChildren; stale?: boolean }) {
  return (
    <section class={`card ${props.class ?? ""} ${props.stale ? "stale" : ""}`}>
      {(props.title || props.action) && (
        <header class="card-head">
          {props.title && <h2>{props.title}</h2>}
          {props.action && <div class="card-action">{props.action}</div>}
        </header>
      )}
      {props.children}
    </section>
  );
}

/** The head of a page: its title, what it says about itself, and how old its data is. */
export function PageHead(props: { title: ComponentChildren; note?: ComponentChildren; of?: Loaded<unknown>; every?: number; children?: ComponentChildren }) {
  return (
    <header class="page-head">
      <div class="page-title">
        <h1>{props.title}</h1>
        {props.note && <p class="note">{props.note}</p>}
      </div>
      <div class="page-tools">
        {props.of && <Freshness of={props.of} every={props.every ?? 5000} />}
        {props.children}
      </div>
    </header>
  );
}

/** Whether data is too old to be believed without a word. */
export function isStale(of: Pick<Loaded<unknown>, "at">, every = 5000): boolean {
  void now.value;
  if (of.at === undefined) return false;
  const age = local() - of.at;
  return age > 3 * every + 2000 || (link.value.state !== "ok" && age > 1500);
}

/** Says how old data is once that matters. */
export function Freshness({ of, every }: { of: Loaded<unknown>; every: number }) {
  const stale = isStale(of, every);
  if (of.at === undefined) return null;
  const time = clock(of.at);
  return (
    <span class={`freshness ${stale ? "old" : ""}`} role="status">
      {stale ? `As of ${time}, ${ago(local() - of.at)}` : "Live"}
    </span>
  );
}

/** What stands where data would be: a sentence while it loads, or why there is none. */
export function Missing({ of, children }: { of: Loaded<unknown>; children?: ComponentChildren }) {
  if (of.error) return <ErrorNote error={of.error} />;
  return <p class="empty">{children ?? "Loading …"}</p>;
}

export function ErrorNote({ error }: { error: Error }) {
  const allowed = !(error instanceof Refused && error.status === 403);
  return (
    <p class={`notice ${allowed ? "bad" : "warn"}`} role="alert">
      {error.message}
    </p>
  );
}

export const Empty = ({ title, children }: { title: string; children?: ComponentChildren }) => (
  <div class="empty">
    <p class="empty-title">{title}</p>
    {children}
  </div>
);

/** A table that scrolls by itself where it is too wide. A column whose name begins with `#` has numbers; empty names are left out. */
export function Table(props: { label: string; columns: string[]; class?: string; id?: string; children: ComponentChildren }) {
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={props.label}>
      <table class={`table ${props.class ?? ""}`} id={props.id}>
        <thead>
          <tr>
            {props.columns.filter(Boolean).map((name) => (
              <th key={name} scope="col" class={name.startsWith("#") ? "number" : ""}>
                {name.replace(/^#/, "")}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>{props.children}</tbody>
      </table>
    </div>
  );
}

/** Says that a list was cut off, and where. */
export const Cut = ({ more, at }: { more: boolean; at: number }) => (more ? <p class="hint">{`The first ${count(at)} are shown.`}</p> : null);

/** A number with a name. */
export function Stat(props: { label: string; value: ComponentChildren; note?: ComponentChildren; tone?: Tone; href?: string }) {
  const inner = (
    <>
      <span class="stat-label">{props.label}</span>
      <span class="stat-value">{props.value}</span>
      {props.note && <span class="stat-note">{props.note}</span>}
    </>
  );
  const classes = `stat ${props.tone ?? ""}`;
  return props.href ? (
    <a class={classes} href={props.href}>
      {inner}
    </a>
  ) : (
    <div class={classes}>{inner}</div>
  );
}

/** A small plot of counts, oldest first. */
export function Spark({ values, label, tone = "good" }: { values: number[]; label: string; tone?: Tone }) {
  const width = 240;
  const height = 44;
  const most = Math.max(1, ...values);
  const gap = width / Math.max(1, values.length);
  return (
    <svg class={`spark ${tone}`} viewBox={`0 0 ${width} ${height}`} preserveAspectRatio="none" role="img" aria-label={label}>
      <line x1="0" x2={width} y1={height - 0.5} y2={height - 0.5} class="spark-base" />
      {values.map((value, index) => {
        const tall = value === 0 ? 0 : Math.max(2, (value / most) * (height - 2));
        return <rect key={index} x={index * gap + gap * 0.15} width={gap * 0.7} y={height - tall} height={tall} />;
      })}
    </svg>
  );
}

/** How much of a lease is left, by the server's clock. */
export function Countdown({ expires, ttl, grace = 0 }: { expires: string; ttl: number; grace?: number }) {
  void now.value;
  const left = until(expires);
  const share = Math.max(0, Math.min(1, left / Math.max(1, ttl)));
  const tone = left <= 0 ? (grace > 0 && left > -grace ? "bad" : "quiet") : share < 1 / 3 ? "warn" : "good";
  const words = left > 0 ? duration(left) : grace > 0 && left > -grace ? "in jeopardy" : "expired";
  return (
    <span class={`countdown ${tone}`}>
      <span class="countdown-track" aria-hidden="true">
        <span class="countdown-bar" style={{ width: `${(share * 100).toFixed(1)}%` }} />
      </span>
      <span class="countdown-words">{words}</span>
    </span>
  );
}

/** A text that can be copied with a button; it can be selected too. */
export function Copy({ text, label }: { text: string; label: string }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // Without a clipboard (plain HTTP from elsewhere) the text is selected by hand.
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  };
  return (
    <button type="button" class="copy" onClick={copy} aria-label={`Copy ${label}`} title={`Copy ${label}`}>
      {done ? "✓" : <CopyIcon />}
    </button>
  );
}

const CopyIcon = () => (
  <svg viewBox="0 0 16 16" width="14" height="14" aria-hidden="true">
    <rect x="5.5" y="5.5" width="8" height="8" rx="1.5" fill="none" stroke="currentColor" stroke-width="1.3" />
    <path d="M10.5 3.5v-.5a1 1 0 0 0-1-1H3.5a1 1 0 0 0-1 1v6a1 1 0 0 0 1 1H4" fill="none" stroke="currentColor" stroke-width="1.3" />
  </svg>
);

export const KeyLink = ({ name }: { name: string }) => (
  <a class="mono key" href={href("lease", name)} title={name}>
    {name}
  </a>
);

export function Field(props: { label: string; hint?: ComponentChildren; fault?: string | undefined; children: (id: string, described: string | undefined) => ComponentChildren; class?: string }) {
  const id = useId();
  const described = props.fault || props.hint ? `${id}-note` : undefined;
  return (
    <div class={`field ${props.class ?? ""} ${props.fault ? "wrong" : ""}`}>
      <label for={id}>{props.label}</label>
      {props.children(id, described)}
      {described && (
        <p id={described} class={props.fault ? "fault" : "hint"}>
          {props.fault ?? props.hint}
        </p>
      )}
    </div>
  );
}

/** A question before something that cannot be taken back. */
export function Confirm(props: {
  title: string;
  children: ComponentChildren;
  action: string;
  danger?: boolean;
  /** Asks for a reason too. */
  reason?: string;
  onConfirm: (reason: string) => Promise<void>;
  onClose: () => void;
}) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [reason, setReason] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<Error | undefined>(undefined);
  const title = useId();
  useEffect(() => dialog.current?.showModal(), []);
  const submit = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    setError(undefined);
    try {
      await props.onConfirm(reason.trim());
      dialog.current?.close();
    } catch (error) {
      setError(error as Error);
    } finally {
      setBusy(false);
    }
  };
  return (
    <dialog ref={dialog} class="dialog" aria-labelledby={title} onClose={props.onClose}>
      <form onSubmit={submit}>
        <h2 id={title}>{props.title}</h2>
        <div class="dialog-text">{props.children}</div>
        {props.reason && (
          <Field label={props.reason} hint="The holder and the history get to know it.">
            {(id, described) => (
              <input id={id} aria-describedby={described} required maxlength={200} autofocus value={reason} onInput={(event) => setReason(event.currentTarget.value)} />
            )}
          </Field>
        )}
        {error && <ErrorNote error={error} />}
        <div class="dialog-buttons">
          <button type="button" class="button" onClick={() => dialog.current?.close()}>
            Cancel
          </button>
          <button class={`button ${props.danger ? "danger" : "primary"}`} disabled={busy || (props.reason !== undefined && reason.trim() === "")}>
            {props.action}
          </button>
        </div>
      </form>
    </dialog>
  );
}

interface ToastMessage {
  id: number;
  text: string;
  tone: Tone;
}

const toasts = signal<ToastMessage[]>([]);
let toastId = 0;

/** Says something in passing. */
export function toast(text: string, tone: Tone = "good"): void {
  const id = (toastId += 1);
  toasts.value = [...toasts.value.slice(-3), { id, text, tone }];
  setTimeout(() => (toasts.value = toasts.value.filter((it) => it.id !== id)), 5000);
}

export const Toasts = () => (
  <div class="toasts" role="status" aria-live="polite">
    {toasts.value.map((it) => (
      <p key={it.id} class={`toast ${it.tone}`}>
        {it.text}
      </p>
    ))}
  </div>
);
