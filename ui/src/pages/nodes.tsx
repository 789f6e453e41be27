// Who runs what: pollers with their targets, runners with their cameras; who should, and what nobody has.

import { useState } from "preact/hooks";
import { get, may, post } from "../api/client";
import type { NodeList, Plan, Runner } from "../api/types";
import { useLoad } from "../lib/load";
import { href } from "../lib/router";
import { ago, count, duration, now, plural } from "../lib/time";
import { planWords, type Tone } from "../lib/words";
import { Matrix, type MatrixRow } from "../ui/matrix";
import { Badge, Card, Confirm, Empty, Missing, PageHead, Table, isStale, toast } from "../ui/parts";

/** How many runners are read; more are counted. */
const RUNNERS = 1000;

export function Nodes() {
  const nodes = useLoad("nodes", (signal) => get("/api/v1/nodes", { signal }), {
    every: 4000,
    gap: 500,
    on: (batch) => batch.events.some((event) => (event.kind === "poll" || event.kind === "node" || event.kind === "target") && event.event_type !== "lease_renewed"),
  });
  return (
    <>
      <PageHead title="Nodes and runners" of={nodes} every={4000} />
      {nodes.data ? <Pollers list={nodes.data} stale={isStale(nodes, 4000)} /> : <Missing of={nodes} />}
      {may("runners:read") && <Runners />}
    </>
  );
}

function Pollers({ list, stale }: { list: NodeList; stale: boolean }) {
  const owned = list.nodes.flatMap((node) => node.targets);
  const rows: MatrixRow[] = [...owned, ...list.foreign, ...list.unowned].map((target) => ({
    name: target.id,
    key: `poll:${target.id}`,
    owner: target.owner ?? undefined,
    preferred: target.preferred ?? undefined,
    state: target.state,
  }));
  const unowned = rows.filter((row) => row.state === "unowned").length;
  const nodes = [...list.nodes].sort((a, b) => (a.name ?? a.id).localeCompare(b.name ?? b.id, "en", { numeric: true }));
  const columns = nodes.map((node) => ({ id: node.id, name: node.name ?? node.id }));
  for (const target of list.foreign) {
    if (target.owner && !columns.some((column) => column.id === target.owner)) columns.push({ id: target.owner, name: target.owner });
  }
  const away = rows.filter((row) => row.owner && row.preferred && row.owner !== row.preferred).length;
  if (rows.length === 0 && columns.length === 0) {
    return (
      <Card title="Pollers">
        <Empty title="Nobody polls yet">
          <p>
            Start one with <code>leasehold poll</code>
          </p>
        </Empty>
      </Card>
    );
  }
  return (
    <Card
      title="Pollers"
      stale={stale}
      action={
        <span class="with-badge">
          {unowned > 0 ? <Badge tone="bad">{plural(unowned, "target")} unowned</Badge> : <Badge tone="good">Every target has an owner</Badge>}
          {away > 0 && <Badge tone="busy">{count(away)} not where preferred</Badge>}
        </span>
      }
    >
      <ul class="tiles">
        {nodes.map((node) => (
          <li key={node.id} class="tile">
            <p class="tile-name ellipsis" title={node.id}>
              {node.name ?? node.id}
            </p>
            <Load used={node.targets.length} of={node.capacity ?? undefined} unit="target" />
            <p class="hint">{seen(node, now.value)}</p>
          </li>
        ))}
      </ul>
      <Matrix label="Nodes and targets" columns={columns} rows={rows} />
    </Card>
  );
}

/** When a node was last seen and since when; a foreign program's node says neither. */
function seen(node: { renewed_at?: string | null; since?: string | null }, at: number): string {
  const last = node.renewed_at ?? node.since;
  if (!last) return "Another program's, with no times of its own";
  const up = node.since ? `, up for ${duration(at - Date.parse(node.since))}` : "";
  return `Seen ${ago(at - Date.parse(last))}${up}`;
}

function Load({ used, of, unit }: { used: number; of: number | undefined; unit: string }) {
  const share = of ? Math.min(1, used / of) : 0;
  return (
    <div class="load">
      <span>{of ? `${count(used)} of ${plural(of, unit)}` : plural(used, unit)}</span>
      {of !== undefined && (
        <span class={`load-track ${share >= 1 ? "full" : ""}`} aria-hidden="true">
          <span style={{ width: `${share * 100}%` }} />
        </span>
      )}
    </div>
  );
}

const STATUS: Record<string, { word: string; tone: Tone }> = {
  active: { word: "Active", tone: "good" },
  cordoned: { word: "Cordoned", tone: "warn" },
  draining: { word: "Draining", tone: "busy" },
  inactive: { word: "Gone", tone: "bad" },
};

interface Site {
  tenant: string;
  site: string;
  plan: Plan | undefined;
  cameras: string[];
}

async function readRunners(signal: AbortSignal) {
  const list = await get("/api/v1/runners", { query: { limit: RUNNERS }, signal });
  const places = await get("/api/v1/sites", { signal });
  const sites: Site[] = await Promise.all(
    places.sites
      .filter((site) => site.cameras > 0 || site.runners > 0)
      .slice(0, 8)
      .map(async (site) => {
        const path = { tenant_id: site.tenant_id, site_id: site.site_id };
        const [plan, cameras] = await Promise.all([
          get("/api/v1/tenants/{tenant_id}/sites/{site_id}/plan", { path, signal }),
          get("/api/v1/tenants/{tenant_id}/sites/{site_id}/cameras", { path, query: { limit: 1000 }, signal }),
        ]);
        return { tenant: site.tenant_id, site: site.site_id, plan, cameras: cameras.cameras.map((camera) => camera.camera_uuid ?? "") };
      }),
  );
  return { runners: list.runners, more: Boolean(list.next_cursor), sites, allSites: places.sites.length };
}

function Runners() {
  const loaded = useLoad("runners", readRunners, {
    every: 5000,
    gap: 700,
    on: (batch) => batch.events.some((event) => (event.kind === "runner" || event.kind === "camera") && event.event_type !== "lease_renewed"),
  });
  const [asking, setAsking] = useState<{ runner: Runner; order: "cordon" | "uncordon" | "drain" } | undefined>(undefined);
  const { data } = loaded;
  if (!data) {
    return (
      <Card title="Runners">
        <Missing of={loaded} />
      </Card>
    );
  }
  const stale = isStale(loaded);
  const admin = may("runners:admin");
  return (
    <>
      <Card title="Runners" stale={stale} action={<span class="note">{plural(data.runners.length, "runner")}{data.more ? " and more" : ""}</span>}>
        {data.runners.length === 0 ? (
          <Empty title="No runner is registered" />
        ) : (
          <Table label="Runners" columns={["Runner", "Status", "Cameras", "Site", "Deployment", "Last seen", admin ? "Orders" : ""]}>
            {data.runners.map((runner) => {
              const status = STATUS[runner.status] ?? { word: runner.status, tone: "quiet" as Tone };
              return (
                <tr key={runner.runner_id} data-runner={runner.runner_id}>
                  <th scope="row" class="mono">
                    <a href={href("leases", undefined, { holder: runner.runner_id })}>{runner.runner_id}</a>
                  </th>
                  <td>
                    <Badge tone={status.tone}>{status.word}</Badge>
                  </td>
                  <td>
                    <Load used={runner.assigned_cameras?.length ?? 0} of={runner.capacity} unit="camera" />
                  </td>
                  <td>
                    {runner.tenant_id} / {runner.site_id}
                  </td>
                  <td>
                    <a href={href("deployment", `${runner.tenant_id}/${runner.site_id}/${runner.deployment_group}`)}>{runner.deployment_group}</a>
                    <p class="hint mono">{runner.deployment_version}</p>
                  </td>
                  <td class="nowrap">{runner.last_heartbeat ? ago(now.value - Date.parse(runner.last_heartbeat)) : "–"}</td>
                  {admin && (
                    <td class="nowrap">
                      {runner.status === "cordoned" || runner.status === "draining" ? (
                        <button type="button" class="button small" onClick={() => setAsking({ runner, order: "uncordon" })}>
                          Uncordon
                        </button>
                      ) : (
                        <button type="button" class="button small" disabled={runner.status === "inactive"} onClick={() => setAsking({ runner, order: "cordon" })}>
                          Cordon
                        </button>
                      )}{" "}
                      <button type="button" class="button small" disabled={runner.status === "draining" || runner.status === "inactive"} onClick={() => setAsking({ runner, order: "drain" })}>
                        Drain …
                      </button>
                    </td>
                  )}
                </tr>
              );
            })}
          </Table>
        )}
      </Card>
      {data.sites.map((site) => (
        <SiteMap key={`${site.tenant}/${site.site}`} site={site} runners={data.runners} stale={stale} />
      ))}
      {data.allSites > data.sites.length && <p class="hint">{`The first ${data.sites.length} of ${plural(data.allSites, "site")}.`}</p>}
      {asking && (
        <Confirm
          title={`${asking.order === "cordon" ? "Cordon" : asking.order === "drain" ? "Drain" : "Uncordon"} ${asking.runner.runner_id}?`}
          action={asking.order === "cordon" ? "Cordon" : asking.order === "drain" ? "Drain" : "Uncordon"}
          danger={asking.order === "drain"}
          onClose={() => setAsking(undefined)}
          onConfirm={async () => {
            const { runner_id, tenant_id } = asking.runner;
            // Another tenant may have a runner of this name.
            const named = { path: { runner_id }, query: { tenant_id } };
            if (asking.order === "cordon") await post("/api/v1/runners/{runner_id}/cordon", named);
            else if (asking.order === "drain") await post("/api/v1/runners/{runner_id}/drain", named);
            else await post("/api/v1/runners/{runner_id}/uncordon", named);
            toast(`${asking.runner.runner_id}: ${asking.order === "cordon" ? "cordoned" : asking.order === "drain" ? "draining" : "takes work again"}.`);
            loaded.again();
          }}
        >
          <p>
            {asking.order === "cordon"
              ? "It keeps what it has and gets nothing new."
              : asking.order === "drain"
                ? `It gives up its ${plural(asking.runner.assigned_cameras?.length ?? 0, "camera")} and gets nothing new. Other runners take them over.`
                : "It takes work again."}
          </p>
        </Confirm>
      )}
    </>
  );
}

function SiteMap({ site, runners, stale }: { site: Site; runners: Runner[]; stale: boolean }) {
  const own = runners.filter((runner) => runner.tenant_id === site.tenant && runner.site_id === site.site);
  const holders = new Map<string, string>();
  for (const runner of own) for (const camera of runner.assigned_cameras ?? []) holders.set(camera, runner.runner_id);
  const moves = new Map((site.plan?.moves ?? []).map((move) => [move.camera_uuid, move]));
  const rows: MatrixRow[] = site.cameras.map((camera) => {
    const move = moves.get(camera);
    const owner = holders.get(camera) ?? move?.from ?? undefined;
    return { name: camera, key: `camera:${camera}`, owner, preferred: move ? (move.to ?? undefined) : owner, state: owner ? "owned" : "unowned" };
  });
  const unowned = rows.filter((row) => row.state === "unowned").length;
  return (
    <Card
      title={`Cameras of ${site.tenant} / ${site.site}`}
      stale={stale}
      action={
        <span class="with-badge">
          {unowned > 0 ? <Badge tone="bad">{plural(unowned, "camera")} unowned</Badge> : rows.length > 0 && <Badge tone="good">Every camera has an owner</Badge>}
          {moves.size > 0 && <Badge tone="busy">{plural(moves.size, "move")} planned</Badge>}
        </span>
      }
    >
      {rows.length === 0 ? (
        <p class="empty">No camera is configured here.</p>
      ) : (
        <Matrix label={`Runners and cameras of ${site.tenant} / ${site.site}`} columns={own.map((runner) => ({ id: runner.runner_id, name: runner.runner_id }))} rows={rows} />
      )}
      {moves.size > 0 && (
        <details class="moves">
          <summary>{plural(moves.size, "planned move")}</summary>
          <ul class="list">
            {[...moves.values()].slice(0, 50).map((move) => (
              <li key={move.camera_uuid}>
                <span class="mono">{move.camera_uuid}</span>: {move.from ?? "nobody"} → {move.to ?? "nobody may take it"}. {planWords(move.reason)}.
              </li>
            ))}
          </ul>
        </details>
      )}
    </Card>
  );
}
