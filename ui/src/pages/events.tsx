// Every change as it happens, resumed without a gap.

import { signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { get } from "../api/client";
import type { Event } from "../api/types";
import { go, href, route } from "../lib/router";
import { follow, resumed, streamState } from "../lib/stream";
import { clock, count, plural } from "../lib/time";
import { eventSentence, eventWords } from "../lib/words";
import { Badge, Empty, KeyLink, PageHead } from "../ui/parts";

/** How many events are kept in the page. */
const KEPT = 2000;
/** How many are drawn. */
const DRAWN = 300;
/** How many are read from the history at a time. */
const PAGE = 200;

const TYPES = ["lease_acquired", "lease_renewed", "lease_released", "lease_expired", "lease_revoked", "lease_stolen", "handoff_offered", "handoff_prepared", "handoff_cancelled", "record_put", "record_removed", "authority_resumed"];

/** Newest first. */
const kept = signal<Event[]>([]);
/** What came while the list was paused, oldest first. */
const held = signal<Event[]>([]);
const paused = signal(false);
/** A break in what is shown: the history no longer had what came in between. */
const broken = signal<number | undefined>(undefined);
const failed = signal("");
const oldest = signal<number | undefined>(undefined);

function add(events: Event[]): void {
  if (events.length === 0) return;
  const newest = kept.value.find((event) => event.event_type !== "lease_renewed")?.revision ?? 0;
  // A renewal carries the revision it came after; everything else comes once.
  const fresh = events.filter((event) => event.event_type === "lease_renewed" || event.revision > newest);
  kept.value = [...fresh.reverse(), ...kept.value].slice(0, KEPT);
}

async function begin(abort: AbortSignal): Promise<void> {
  try {
    const { newest } = await get("/api/v1/events", { query: { limit: 1 }, signal: abort });
    const page = await get("/api/v1/events", { query: { after: Math.max(0, newest - PAGE), limit: 1000 }, signal: abort });
    const seen = new Set(kept.value.map((event) => event.revision));
    kept.value = [...kept.value, ...page.events.filter((event) => !seen.has(event.revision)).reverse()].sort((a, b) => b.revision - a.revision).slice(0, KEPT);
    oldest.value = page.events[0]?.revision;
    failed.value = "";
  } catch (error) {
    if (!abort.aborted) failed.value = (error as Error).message;
  }
}

async function older(): Promise<void> {
  const first = oldest.value;
  if (!first || first <= 1) return;
  const after = Math.max(0, first - 1 - PAGE);
  const page = await get("/api/v1/events", { query: { after, limit: PAGE } });
  const before = page.events.filter((event) => event.revision < first);
  kept.value = [...kept.value, ...before.reverse()].slice(0, KEPT + PAGE);
  oldest.value = before.length > 0 ? after + 1 : 1;
}

let wantedRenewals = false;

export function Events() {
  const { query } = route.value;
  const type = query.get("type") ?? "";
  const text = query.get("q") ?? "";
  const renewals = query.get("renewals") === "1" || type === "lease_renewed";
  wantedRenewals = renewals;
  const [drawn, setDrawn] = useState(DRAWN);
  const change = (changes: Record<string, string>) => go(href("events", undefined, { type, q: text, renewals: renewals ? "1" : "", ...changes }), true);

  useEffect(() => {
    const controller = new AbortController();
    kept.value = [];
    held.value = [];
    broken.value = undefined;
    const unfollow = follow((batch) => {
      if (batch.snapshot) {
        broken.value = batch.snapshot.revision;
        kept.value = [];
      }
      const events = batch.events.filter((event) => wantedRenewals || event.event_type !== "lease_renewed");
      if (paused.value) held.value = [...held.value, ...events].slice(-KEPT);
      else add(events);
    });
    void begin(controller.signal);
    return () => {
      controller.abort();
      unfollow();
    };
  }, []);

  const pause = () => {
    paused.value = !paused.value;
    if (!paused.value) {
      add(held.value);
      held.value = [];
    }
  };
  const needle = text.toLowerCase();
  const found = kept.value.filter(
    (event) =>
      (!type || event.event_type === type) &&
      (renewals || event.event_type !== "lease_renewed") &&
      (!needle || `${event.key} ${event.holder ?? ""} ${event.detail ?? ""} ${event.token ?? ""}`.toLowerCase().includes(needle)),
  );
  const state = streamState.value;
  return (
    <>
      <PageHead title="Events">
        <span class={`freshness ${state === "live" && !paused.value ? "" : "old"}`} role="status" data-resumed={resumed.value}>
          {paused.value ? `Paused, ${plural(held.value.length, "new event")}` : state === "live" ? "Live" : state === "lost" ? "Cut; resuming without a gap" : "Connecting"}
        </span>
        <button type="button" class={`button ${paused.value ? "primary" : ""}`} onClick={pause} aria-pressed={paused.value}>
          {paused.value ? "Resume" : "Pause"}
        </button>
      </PageHead>
      <div class="filters" role="search">
        <input class="search grow" type="search" placeholder="Search key, holder, token, reason  ( / )" aria-label="Search key, holder, token or reason" value={text} onInput={(event) => change({ q: event.currentTarget.value })} />
        <select aria-label="What happened" value={type} onChange={(event) => change({ type: event.currentTarget.value })}>
          <option value="">Everything</option>
          {TYPES.map((it) => (
            <option key={it} value={it}>
              {eventWords(it).word}
            </option>
          ))}
        </select>
        <label class="check">
          <input type="checkbox" checked={renewals} onChange={(event) => change({ renewals: event.currentTarget.checked ? "1" : "" })} /> Renewals
        </label>
        <p class="count" role="status">
          {count(Math.min(drawn, found.length))} of {count(found.length)}
        </p>
      </div>
      {failed.value && (
        <p class="notice bad" role="alert">
          {failed.value}
        </p>
      )}
      {broken.value !== undefined && <p class="notice warn">The history no longer has what happened while this page was away. The list begins anew at revision {count(broken.value)}.</p>}
      {found.length === 0 ? (
        <Empty title={kept.value.length === 0 ? "Nothing has happened yet" : "No event matches"} />
      ) : (
        <div class="card flush">
          <ol class="events" aria-label="Events, newest first">
            {found.slice(0, drawn).map((event, index) => {
              const { word, tone } = eventWords(event.event_type);
              return (
                <li key={event.event_type === "lease_renewed" ? `${event.lease_id}@${event.timestamp}` : event.revision} data-revision={event.revision} class={index === 0 ? "first" : ""}>
                  <span class="event-when" title={event.timestamp}>
                    {clock(event.timestamp)}
                  </span>
                  <span class="event-what">
                    <Badge tone={tone}>{word}</Badge>
                  </span>
                  <span class="event-key">
                    <KeyLink name={event.key} />
                  </span>
                  <span class="event-words" title={eventSentence(event)}>
                    {eventSentence(event)}
                  </span>
                  <span class="event-token mono">{event.token ?? ""}</span>
                  <span class="event-revision mono">{count(event.revision)}</span>
                </li>
              );
            })}
          </ol>
        </div>
      )}
      <p class="more">
        {found.length > drawn ? (
          <button type="button" class="button" onClick={() => setDrawn(drawn + DRAWN)}>
            Show more
          </button>
        ) : (
          (oldest.value ?? 0) > 1 && (
            <button type="button" class="button" onClick={() => (setDrawn(drawn + PAGE), void older())}>
              Load older
            </button>
          )
        )}
      </p>
    </>
  );
}
