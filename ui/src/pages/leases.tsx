// Every live lease: searched, sorted and counted by the server, drawn as far as one can see.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { get } from "../api/client";
import type { Event, Lease } from "../api/types";
import { useLoad } from "../lib/load";
import { go, href, route } from "../lib/router";
import { ago, clock, count, serverNow } from "../lib/time";
import { Badge, Copy, Countdown, Empty, KeyLink, Missing, PageHead, isStale } from "../ui/parts";
import { Virtual } from "../ui/virtual";

/** How many leases are asked for at a time. */
const PART = 200;

const SORTS = [
  ["key", "Key"],
  ["holder", "Holder"],
  ["token", "Token"],
  ["expires_at", "Time left"],
  ["acquired_at", "Held since"],
] as const;

const STATUSES = [
  ["", "Active and waiting"],
  ["active", "Active"],
  ["pending", "Waiting"],
  ["expiring", "About to expire"],
  ["jeopardy", "In jeopardy"],
] as const;

export const graceOf = (lease: Lease): number => {
  const policy = lease.on_outage as { policy?: string; grace_seconds?: number } | undefined;
  return policy?.policy === "hold" ? Number(policy.grace_seconds ?? 0) * 1000 : 0;
};

/** What changed about leases on the list, without asking again. */
function patched(lease: Lease, changes: Map<string, Event>): Lease {
  const change = lease.lease_id ? changes.get(lease.lease_id) : undefined;
  if (!change?.expires_at || Date.parse(change.expires_at) <= Date.parse(lease.expires_at)) return lease;
  return { ...lease, expires_at: change.expires_at, renewed_at: change.timestamp };
}

function useNarrow(): boolean {
  const query = useMemo(() => matchMedia("(max-width: 760px)"), []);
  const [narrow, setNarrow] = useState(query.matches);
  useEffect(() => {
    const changed = () => setNarrow(query.matches);
    query.addEventListener("change", changed);
    return () => query.removeEventListener("change", changed);
  }, [query]);
  return narrow;
}

export function Leases() {
  const { query } = route.value;
  const wanted = { q: query.get("q") ?? "", kind: query.get("kind") ?? "", holder: query.get("holder") ?? "", status: query.get("status") ?? "", sort: query.get("sort") ?? "key" };
  const [text, setText] = useState(wanted.q);
  const [part, setPart] = useState(0);
  const list = useRef<HTMLDivElement>(null);
  const renewals = useRef(new Map<string, Event>());
  const narrow = useNarrow();
  const change = (changes: Partial<typeof wanted>) => {
    setPart(0);
    go(href("leases", undefined, { ...wanted, ...changes, sort: (changes.sort ?? wanted.sort) === "key" ? undefined : (changes.sort ?? wanted.sort) }), true);
  };
  // Typing asks once it pauses.
  useEffect(() => {
    if (text === wanted.q) return undefined;
    const timer = setTimeout(() => change({ q: text }), 180);
    return () => clearTimeout(timer);
  }, [text]);

  /** Nothing moves under a hand that is selecting. */
  const selecting = () => {
    const selection = document.getSelection();
    return Boolean(selection && !selection.isCollapsed && list.current?.contains(selection.anchorNode));
  };
  const filter = JSON.stringify(wanted);
  const loaded = useLoad(
    `${filter}@${part}`,
    async (signal) => {
      const found = await get("/api/v1/leases/search", { query: { ...wanted, offset: part, limit: PART }, signal });
      renewals.current.clear();
      return { filter, part, found };
    },
    {
      every: 4000,
      gap: 600,
      hold: selecting,
      on: (batch) => {
        let moved = batch.snapshot !== undefined;
        for (const event of batch.events) {
          if (event.event_type === "lease_renewed" && event.lease_id) renewals.current.set(event.lease_id, event);
          else if (event.event_type.startsWith("lease_")) moved = true;
        }
        return moved;
      },
    },
  );
  const kinds = useLoad("kinds", async (signal) => (await get("/api/v1/overview", { signal })).leases.kinds, { every: 15_000 });

  // The part before is shown until the next one is there.
  const kept = useRef(loaded.data);
  if (loaded.data) kept.current = loaded.data;
  const data = loaded.data ?? kept.current;
  const found = data?.found;
  const shown = found ? found.leases.length : 0;
  const rowHeight = narrow ? 84 : 40;

  const sortBy = (name: string) => change({ sort: wanted.sort === name ? `-${name}` : name });
  return (
    <div class="fill-page" ref={list}>
      <PageHead title="Leases" of={loaded} every={4000}>
        <p class="count" role="status">
          {found ? `${count(shown)} of ${count(found.matched)}${found.matched === found.total ? "" : ` (${count(found.total)} in all)`}` : ""}
        </p>
      </PageHead>
      <div class="filters" role="search">
        <input class="search grow" type="search" placeholder="Search key, holder, token  ( / )" aria-label="Search key, holder or token" value={text} onInput={(event) => setText(event.currentTarget.value)} />
        <select aria-label="Kind" value={wanted.kind} onChange={(event) => change({ kind: event.currentTarget.value })}>
          <option value="">All kinds</option>
          {[...new Set([...(kinds.data ?? []).map((kind) => kind.kind), ...(wanted.kind ? [wanted.kind] : [])])].map((kind) => (
            <option key={kind} value={kind}>
              {kind}
            </option>
          ))}
        </select>
        <select aria-label="Status" value={wanted.status} onChange={(event) => change({ status: event.currentTarget.value })}>
          {STATUSES.map(([value, name]) => (
            <option key={value} value={value}>
              {name}
            </option>
          ))}
        </select>
        {narrow && (
          <select aria-label="Sort by" value={wanted.sort} onChange={(event) => change({ sort: event.currentTarget.value })}>
            {SORTS.map(([value, name]) => (
              <option key={value} value={value}>
                By {name.toLowerCase()}
              </option>
            ))}
          </select>
        )}
        {wanted.holder && (
          <button type="button" class="chip" onClick={() => change({ holder: "" })} aria-label={`Remove the filter for holder ${wanted.holder}`}>
            Holder {wanted.holder} ✕
          </button>
        )}
      </div>
      {loaded.error && found && <p class="notice warn">{loaded.error.message}</p>}
      {!found ? (
        <Missing of={loaded} />
      ) : found.matched === 0 ? (
        found.total === 0 ? (
          <Empty title="Nothing is owned yet">
            <p>
              Try <code>leasehold run job:first -- sleep 60</code>
            </p>
          </Empty>
        ) : (
          <Empty title="No lease matches">
            <button type="button" class="button" onClick={() => (setText(""), change({ q: "", kind: "", holder: "", status: "" }))}>
              Show all {count(found.total)}
            </button>
          </Empty>
        )
      ) : (
        <div class={`lease-list ${isStale(loaded, 4000) ? "stale" : ""}`}>
          <Virtual<Lease>
            label="Leases"
            total={found.matched}
            rowHeight={rowHeight}
            row={(index) => {
              const lease = found.leases[index - (data?.part ?? 0)];
              return lease && patched(lease, renewals.current);
            }}
            keyOf={(lease) => `${lease.lease_id}/${lease.kind}:${lease.id}`}
            onRange={(first, last) => {
              // The next part is asked for before its first row is in sight.
              const begin = Math.floor(Math.max(0, (first + last) / 2 - PART / 2) / 50) * 50;
              if (first < part || last > part + PART) setPart(begin);
            }}
            head={
              <div class="vhead" role="row" aria-rowindex={1}>
                {SORTS.map(([name, title]) => {
                  const up = wanted.sort === name;
                  const down = wanted.sort === `-${name}`;
                  return (
                    <span key={name} role="columnheader" aria-sort={up ? "ascending" : down ? "descending" : "none"}>
                      <button type="button" onClick={() => sortBy(name)}>
                        {title}
                        <span aria-hidden="true">{up ? " ↑" : down ? " ↓" : ""}</span>
                      </button>
                    </span>
                  );
                })}
              </div>
            }
            render={(lease) => <Row lease={lease} />}
          />
        </div>
      )}
    </div>
  );
}

function Row({ lease }: { lease: Lease }) {
  const key = `${lease.kind}:${lease.id}`;
  const waiting = lease.status === "pending";
  return (
    <>
      <span role="cell" class="cell-key">
        <KeyLink name={key} />
      </span>
      <span role="cell" class="cell-holder">
        <a class="ellipsis plain" href={href("leases", undefined, { holder: lease.holder ?? "" })} title={`${lease.holder} #${lease.incarnation}`}>
          {lease.holder}
        </a>
      </span>
      <span role="cell" class="cell-token mono">
        {waiting ? <span class="note">–</span> : <span class="token">{lease.token}</span>}
        {!waiting && <Copy text={String(lease.token)} label={`the token of ${key}`} />}
      </span>
      <span role="cell" class="cell-left">
        {waiting ? <Badge tone="busy">Waiting</Badge> : <Countdown expires={lease.expires_at} ttl={Number(lease.ttl_seconds ?? 60) * 1000} grace={graceOf(lease)} />}
      </span>
      <span role="cell" class="cell-since" title={clock(lease.acquired_at)}>
        {ago(serverNow() - Date.parse(lease.acquired_at))}
      </span>
    </>
  );
}
