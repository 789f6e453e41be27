// What is owned, free, in jeopardy or unowned, and how the server is.

import { get, link, may } from "../api/client";
import type { Minute, Replica } from "../api/types";
import { useLoad } from "../lib/load";
import { href } from "../lib/router";
import { streamState } from "../lib/stream";
import { ago, clock, count, duration, plural, serverNow } from "../lib/time";
import { endSentence, eventWords, listed, replicaSentence, replicaWords } from "../lib/words";
import { Badge, Card, Empty, KeyLink, Missing, PageHead, Spark, Stat, isStale } from "../ui/parts";

/** How many unowned things are named. */
const NAMED = 6;

interface Unowned {
  key: string;
  what: string;
  since: string | undefined;
  how: string;
}

async function unowned(signal: AbortSignal): Promise<{ total: number; named: Unowned[] }> {
  const keys: { key: string; what: string }[] = [];
  let total = 0;
  const nodes = await get("/api/v1/nodes", { signal });
  const targets = nodes.unowned.filter((target) => target.state === "unowned");
  total += targets.length;
  keys.push(...targets.slice(0, NAMED).map((target) => ({ key: `poll:${target.id}`, what: target.id })));
  if (may("runners:read")) {
    const free = await get("/api/v1/cameras/available", { query: { limit: 1000 }, signal });
    total += free.cameras.length;
    keys.push(...free.cameras.slice(0, NAMED).map((camera) => ({ key: `camera:${camera}`, what: camera })));
  }
  const named = await Promise.all(
    keys.slice(0, NAMED).map(async ({ key, what }) => {
      const history = await get("/api/v1/leases/history", { query: { key }, signal });
      const last = history.owners.at(-1);
      return { key, what, since: last?.until ?? undefined, how: last ? `${last.holder}: ${endSentence(last)}` : "Nobody has ever held it." };
    }),
  );
  return { total, named };
}

const sum = (minutes: Minute[], ...fields: ("acquired" | "released" | "expired" | "revoked" | "stolen")[]): number =>
  minutes.reduce((total, minute) => total + fields.reduce((part, field) => part + minute[field], 0), 0);

export function OverviewPage() {
  const overview = useLoad("overview", (signal) => get("/api/v1/overview", { signal }), {
    every: 5000,
    gap: 1000,
    on: (batch) => batch.events.some((event) => event.event_type !== "lease_renewed") || batch.snapshot !== undefined,
  });
  const free = useLoad("unowned", unowned, {
    every: 10_000,
    gap: 2000,
    on: (batch) => batch.events.some((event) => (event.kind === "poll" || event.kind === "camera") && event.event_type !== "lease_renewed"),
  });
  const losses = useLoad(
    "losses",
    async (signal) => {
      const { newest } = await get("/api/v1/events", { query: { limit: 1 }, signal });
      const pages = await Promise.all(
        ["lease_expired", "lease_revoked", "lease_stolen"].map((type) => get("/api/v1/events", { query: { type, after: Math.max(0, newest - 5000), limit: 1000 }, signal })),
      );
      return pages.flatMap((page) => page.events).sort((a, b) => b.revision - a.revision).slice(0, 8);
    },
    { every: 15_000, gap: 2000, on: (batch) => batch.events.some((event) => /expired|revoked|stolen/.test(event.event_type)) },
  );
  const data = overview.data;
  if (!data) {
    return (
      <>
        <PageHead title="Overview" />
        <Missing of={overview} />
      </>
    );
  }
  const stale = isStale(overview);
  const minutes = data.activity?.minutes ?? [];
  const lost = sum(minutes, "expired", "revoked", "stolen");
  const most = Math.max(1, ...data.leases.kinds.map((kind) => kind.active));
  return (
    <>
      <PageHead title="Overview" of={overview} />
      <div class={`stats ${stale ? "stale" : ""}`}>
        <Stat label="Owned" value={count(data.leases.active)} note={`by ${plural(data.leases.holders, "holder")}`} href={href("leases", undefined, { status: "active" })} />
        <Stat
          label="Unowned"
          value={free.data ? count(free.data.total) : "…"}
          note={free.data?.total ? "targets and cameras" : "everything has an owner"}
          tone={free.data?.total ? "bad" : undefined}
          href={href("nodes")}
        />
        <Stat
          label="In jeopardy"
          value={count(data.leases.jeopardy)}
          note={data.leases.jeopardy ? "expired, but withheld" : "none withheld"}
          tone={data.leases.jeopardy ? "bad" : undefined}
          href={href("leases", undefined, { status: "jeopardy" })}
        />
        <Stat
          label="About to expire"
          value={count(data.leases.expiring)}
          note="less than a third left"
          tone={data.leases.expiring ? "warn" : undefined}
          href={href("leases", undefined, { status: "expiring", sort: "expires_at" })}
        />
        <Stat label="Waiting" value={count(data.leases.pending)} note="in a queue" href={href("leases", undefined, { status: "pending" })} />
        <Stat label="Lost in the last hour" value={data.activity ? count(lost) : "–"} note="expired, revoked, taken over" tone={lost ? "warn" : undefined} href={href("events", undefined, { type: "lease_expired" })} />
      </div>

      <div class="columns">
        <Card title="Last hour" stale={stale} class="wide-card">
          {data.activity ? (
            <div class="plots">
              <Plot name="Acquired" minutes={minutes} field={["acquired"]} tone="good" />
              <Plot name="Released" minutes={minutes} field={["released"]} tone="quiet" />
              <Plot name="Lost" minutes={minutes} field={["expired", "revoked", "stolen"]} tone="warn" />
            </div>
          ) : (
            <p class="empty">An API key that is bound to a tenant does not see the counts of all.</p>
          )}
          {data.activity && <p class="hint">Counted from the history since {clock(data.activity.since)}.</p>}
        </Card>

        <Card title="Health" stale={stale}>
          <ul class="health">
            <Health good={link.value.state === "ok"} name="Server" words={link.value.state === "ok" ? `Ready, version ${data.version}` : "Not answering"} />
            <Health good={link.value.state === "ok"} name="Store" words={storeName(data.store.name)} />
            <Health good={streamState.value === "live"} name="Live stream" words={streamState.value === "live" ? `At revision ${count(data.newest)}` : "Connecting"} />
            {data.broker ? (
              <Health
                good={data.broker.behind < 1000 && Boolean(data.broker.publisher)}
                name="Broker"
                words={!data.broker.publisher ? "Nobody publishes" : data.broker.behind ? `${count(data.broker.behind)} revisions behind` : "Has everything"}
              />
            ) : (
              <Health good={undefined} name="Broker" words="None configured" />
            )}
            {data.replicas && <Health good={data.replicas.every((it) => it.status === "healthy")} name="Replicas" words={replicasWords(data.replicas)} />}
          </ul>
          <h3>What the store promises</h3>
          <ul class="promises">
            <Promise_ kept={data.store.durable}>{data.store.durable ? "A grant survives a crash of the machine." : "A crash of the machine may forget grants."}</Promise_>
            <Promise_ kept={data.store.time_stops}>{data.store.time_stops ? "No lease ages while the server is down." : "Leases age on while the server is down."}</Promise_>
            <Promise_ kept={data.store.shared}>{data.store.shared ? "Several servers may share it." : "One server has it for itself."}</Promise_>
            {data.store.caveats.map((caveat) => (
              <Promise_ key={caveat} kept={undefined}>
                {caveat.charAt(0).toUpperCase() + caveat.slice(1)}
              </Promise_>
            ))}
          </ul>
        </Card>

        {data.replicas && <Replicas list={data.replicas} stale={stale} />}

        <Card title="By kind" stale={stale}>
          {data.leases.kinds.length === 0 ? (
            <Empty title="Nothing is owned yet">
              <p>
                Try <code>leasehold run job:first -- sleep 60</code>
              </p>
            </Empty>
          ) : (
            <ul class="bars">
              {data.leases.kinds.slice(0, 10).map((kind) => (
                <li key={kind.kind}>
                  <a href={href("leases", undefined, { kind: kind.kind })}>
                    <span class="bars-name mono">{kind.kind}</span>
                    <span class="bars-track" aria-hidden="true">
                      <span style={{ width: `${(kind.active / most) * 100}%` }} />
                    </span>
                    <span class="bars-count">{count(kind.active)}</span>
                  </a>
                </li>
              ))}
            </ul>
          )}
        </Card>

        <Card title="Unowned" stale={stale} action={free.data && free.data.total > NAMED ? <a href={href("nodes")}>All {count(free.data.total)}</a> : undefined}>
          {!free.data ? (
            <Missing of={free} />
          ) : free.data.total === 0 ? (
            <p class="empty">Every target and camera has an owner.</p>
          ) : (
            <ul class="list">
              {free.data.named.map((it) => (
                <li key={it.key}>
                  <div class="list-main">
                    <KeyLink name={it.key} />
                    <span class="nowrap note">{it.since ? ago(serverNow() - Date.parse(it.since)) : "never owned"}</span>
                  </div>
                  <p class="hint">{it.how}</p>
                </li>
              ))}
            </ul>
          )}
        </Card>

        <Card title="Latest losses" stale={stale} action={<a href={href("events")}>All events</a>}>
          {!losses.data ? (
            <Missing of={losses} />
          ) : losses.data.length === 0 ? (
            <p class="empty">No lease was lost lately.</p>
          ) : (
            <ul class="list">
              {losses.data.map((event) => (
                <li key={event.event_id}>
                  <div class="list-main">
                    <span class="with-badge">
                      <Badge tone={eventWords(event.event_type).tone}>{eventWords(event.event_type).word}</Badge> <KeyLink name={event.key} />
                    </span>
                    <span class="nowrap note">{ago(serverNow() - Date.parse(event.timestamp))}</span>
                  </div>
                  <p class="hint">
                    {event.holder}
                    {event.detail ? `: ${event.detail}` : ""}
                  </p>
                </li>
              ))}
            </ul>
          )}
        </Card>

      </div>
    </>
  );
}

const storeName = (name: string): string =>
  ({ embedded: "Embedded, on this server's disk", memory: "In memory: forgets everything at the end", postgres: "PostgreSQL", redis: "Redis", remote: "Another server" })[name] ?? name;

function replicasWords(list: Replica[]): string {
  const healthy = list.filter((it) => it.status === "healthy").length;
  return healthy === list.length ? `${count(healthy)} healthy` : `${count(healthy)} of ${count(list.length)} healthy`;
}

/** The servers that share the store. */
function Replicas({ list, stale }: { list: Replica[]; stale: boolean }) {
  const versions = [...new Set(list.filter((it) => it.status !== "gone").map((it) => it.version))].sort();
  return (
    <Card title="Replicas" stale={stale} action={<span class="note">{plural(list.length, "server")}</span>}>
      {versions.length > 1 && (
        <p class="notice warn" role="status">
          They run different versions: {listed(versions)}. Finish the upgrade.
        </p>
      )}
      {list.length === 0 ? (
        <p class="empty">No server has announced itself.</p>
      ) : (
        <ul class="list">
          {list.map((it) => (
            <li key={`${it.name} ${it.started_at}`} data-replica={it.name} data-status={it.status}>
              <div class="list-main">
                <span class="with-badge">
                  <Badge tone={replicaWords(it).tone}>{replicaWords(it).word}</Badge>{" "}
                  <span class="mono key" title={it.address}>
                    {it.name}
                  </span>
                </span>
                <span class="nowrap note" title={`Since ${clock(it.started_at)}`}>
                  {it.status === "gone" ? (it.gone_at ? ago(serverNow() - Date.parse(it.gone_at)) : "just now") : `up ${duration(serverNow() - Date.parse(it.started_at))}`}
                </span>
              </div>
              <p class="hint">{replicaSentence(it)}</p>
            </li>
          ))}
        </ul>
      )}
    </Card>
  );
}

function Plot({ name, minutes, field, tone }: { name: string; minutes: Minute[]; field: ("acquired" | "released" | "expired" | "revoked" | "stolen")[]; tone: "good" | "quiet" | "warn" }) {
  const values = minutes.map((minute) => field.reduce((part, it) => part + minute[it], 0));
  const total = values.reduce((a, b) => a + b, 0);
  return (
    <div class="plot">
      <p class="plot-head">
        <span>{name}</span> <strong>{count(total)}</strong>
      </p>
      <Spark values={values} tone={tone} label={`${name} per minute in the last hour: ${count(total)} in all, at most ${count(Math.max(0, ...values))}`} />
      <p class="plot-foot" aria-hidden="true">
        <span>1 h ago</span>
        <span>at most {count(Math.max(0, ...values))} a minute</span>
        <span>now</span>
      </p>
    </div>
  );
}

const Health = ({ good, name, words }: { good: boolean | undefined; name: string; words: string }) => (
  <li>
    <i class={`lamp ${good === undefined ? "none" : good ? "on" : "off"}`} aria-hidden="true" />
    <span class="health-name">{name}</span>
    <span class="health-words">{words}</span>
  </li>
);

const Promise_ = ({ kept, children }: { kept: boolean | undefined; children: preact.ComponentChildren }) => (
  <li class={kept === undefined ? "note" : kept ? "yes" : "no"}>
    <span aria-hidden="true">{kept === undefined ? "i" : kept ? "✓" : "–"}</span>
    <span>{children}</span>
  </li>
);
