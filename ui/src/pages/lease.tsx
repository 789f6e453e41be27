// One key: who has it, who had it under which token and why that ended, who waits, and taking it away.

import { useState } from "preact/hooks";
import { get, may, post } from "../api/client";
import type { Lease, Owner } from "../api/types";
import { useLoad } from "../lib/load";
import { href, route } from "../lib/router";
import { ago, clock, count, duration, now, plural, serverNow } from "../lib/time";
import { endSentence, outageSentence } from "../lib/words";
import { Badge, Card, Confirm, Copy, Countdown, Empty, Missing, PageHead, isStale, toast } from "../ui/parts";
import { graceOf } from "./leases";

/** How many owners are listed; older ones are counted. */
const OWNERS = 100;

export function LeasePage() {
  const key = route.value.arg ?? "";
  const colon = key.indexOf(":");
  const kind = key.slice(0, colon);
  const id = key.slice(colon + 1);
  const [revoking, setRevoking] = useState(false);
  const loaded = useLoad(
    key,
    async (signal) => {
      const [live, history] = await Promise.all([
        get("/api/v1/leases", { query: { kind, id, limit: 200 }, signal }),
        get("/api/v1/leases/history", { query: { key }, signal }),
      ]);
      return {
        lease: live.leases.find((lease) => lease.status === "active"),
        waiters: live.leases.filter((lease) => lease.status === "pending"),
        history,
      };
    },
    { every: 4000, gap: 300, on: (batch) => batch.snapshot !== undefined || batch.events.some((event) => event.key === key) },
  );
  if (colon < 0) {
    return (
      <Empty title="This is not a key">
        <p>A key is a kind and an id with a colon between them, such as job:first.</p>
      </Empty>
    );
  }
  const { data } = loaded;
  const lease = data?.lease;
  const stale = isStale(loaded, 4000);
  return (
    <>
      <PageHead title={<span class="mono break">{key}</span>} of={loaded} every={4000}>
        <a class="button" href={href("leases", undefined, { kind })}>
          All of {kind}
        </a>
        {kind === "camera" && may("runners:read") && (
          <a class="button" href={href("camera", id)}>
            Camera
          </a>
        )}
        {lease && may("leases:admin") && (
          <button type="button" class="button danger" onClick={() => setRevoking(true)}>
            Revoke …
          </button>
        )}
      </PageHead>
      {!data ? (
        <Missing of={loaded} />
      ) : (
        <div class="columns lease-columns">
          <Card title="Now" stale={stale}>
            {lease ? <Live lease={lease} /> : <Free owners={data.history.owners} />}
          </Card>
          <Card title={`Waiting (${count(data.waiters.length)})`} stale={stale}>
            {data.waiters.length === 0 ? (
              <p class="empty">Nobody waits for it.</p>
            ) : (
              <ol class="list numbered">
                {data.waiters.map((waiter) => (
                  <li key={waiter.lease_id}>
                    <div class="list-main">
                      <span class="ellipsis">{waiter.holder}</span>
                      <span class="note nowrap">{duration(serverNow() - Date.parse(waiter.acquired_at))}</span>
                    </div>
                  </li>
                ))}
              </ol>
            )}
          </Card>
          <Card title={`Owners (${count(data.history.owners.length)})`} stale={stale} class="wide-card">
            <Timeline owners={data.history.owners} />
          </Card>
        </div>
      )}
      {revoking && lease && (
        <Confirm
          title={`Revoke ${key}?`}
          action="Revoke"
          danger
          reason="Reason"
          onClose={() => setRevoking(false)}
          onConfirm={async (reason) => {
            await post("/api/v1/leases/{lease_id}/revoke", { path: { lease_id: lease.lease_id }, body: { reason } });
            toast(`Revoked ${key}.`);
            loaded.again();
          }}
        >
          <p>
            <strong>{lease.holder}</strong> loses it immediately and is told why. Whoever waits for it gets it next{data?.waiters[0] ? `: ${data.waiters[0].holder}` : ""}. This cannot be undone.
          </p>
        </Confirm>
      )}
    </>
  );
}

function Live({ lease }: { lease: Lease }) {
  const labels = Object.entries(lease.labels ?? {});
  return (
    <dl class="facts">
      <dt>Holder</dt>
      <dd>
        <a href={href("leases", undefined, { holder: lease.holder ?? "" })}>{lease.holder}</a> <span class="note mono">#{lease.incarnation}</span>
      </dd>
      <dt>Token</dt>
      <dd class="mono">
        <span class="token">{lease.token}</span> <Copy text={String(lease.token)} label="the token" />
      </dd>
      <dt>Time left</dt>
      <dd>
        <Countdown expires={lease.expires_at} ttl={Number(lease.ttl_seconds ?? 60) * 1000} grace={graceOf(lease)} />
      </dd>
      <dt>Held since</dt>
      <dd>
        {clock(lease.acquired_at)} <span class="note">({ago(now.value - Date.parse(lease.acquired_at))})</span>
      </dd>
      <dt>Last renewal</dt>
      <dd>{lease.renewed_at ? `${clock(lease.renewed_at)} (${ago(now.value - Date.parse(lease.renewed_at))})` : "None yet"}</dd>
      <dt>Each renewal lasts</dt>
      <dd>{duration(Number(lease.ttl_seconds ?? 0) * 1000)}</dd>
      <dt>In an outage</dt>
      <dd>{outageSentence(lease)}</dd>
      <dt>Lease id</dt>
      <dd class="mono break">
        {lease.lease_id} <Copy text={lease.lease_id} label="the lease id" />
      </dd>
      {(lease.tenant_id || lease.site_id) && (
        <>
          <dt>Tenant, site</dt>
          <dd>
            {lease.tenant_id ?? "–"}, {lease.site_id ?? "–"}
          </dd>
        </>
      )}
      {lease.config_version && (
        <>
          <dt>Configuration</dt>
          <dd class="mono">{lease.config_version.slice(0, 12)}</dd>
        </>
      )}
      {labels.length > 0 && (
        <>
          <dt>Labels</dt>
          <dd>{labels.map(([name, value]) => `${name}=${value}`).join(", ")}</dd>
        </>
      )}
    </dl>
  );
}

function Free({ owners }: { owners: Owner[] }) {
  const last = owners.at(-1);
  void now.value;
  return (
    <Empty title="Nobody has it">
      {last?.until ? (
        <p>
          Free for {duration(serverNow() - Date.parse(last.until))}. Before that {last.holder} had it. {endSentence(last)}
        </p>
      ) : (
        <p>The history knows of no owner.</p>
      )}
    </Empty>
  );
}

function Timeline({ owners }: { owners: Owner[] }) {
  if (owners.length === 0) return <p class="empty">The history knows of no owner.</p>;
  const newest = [...owners].reverse();
  return (
    <>
      <ol class="timeline">
        {newest.slice(0, OWNERS).map((owner, index) => {
          const next = newest[index + 1];
          const gap = next?.until ? Date.parse(owner.from) - Date.parse(next.until) : 0;
          const end = owner.until ? Date.parse(owner.until) : serverNow();
          return (
            <li key={`${owner.lease_id}/${owner.token}`} class={owner.until ? "" : "current"}>
              <div class="timeline-head">
                <strong>{owner.holder}</strong>
                <span class="note mono">#{owner.incarnation}</span>
                {!owner.until && <Badge tone="good">Holds it</Badge>}
                <span class="mono token-line">
                  Token <span class="token">{owner.token}</span> <Copy text={String(owner.token)} label="this token" />
                </span>
              </div>
              <p class="timeline-when">
                {clock(owner.from)} – {owner.until ? clock(owner.until) : "now"} <span class="note">({duration(end - Date.parse(owner.from))})</span>
              </p>
              <p class="timeline-why">{endSentence(owner)}</p>
              {gap >= 100 && <p class="hint">Free for {duration(gap)} before.</p>}
            </li>
          );
        })}
      </ol>
      {owners.length > OWNERS && <p class="hint">{`The newest ${OWNERS} of ${plural(owners.length, "owner")}.`}</p>}
    </>
  );
}
