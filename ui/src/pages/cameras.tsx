// The cameras of a site, who has each, and whether it runs with the current configuration.

import { useState } from "preact/hooks";
import { get, may } from "../api/client";
import type { Camera, Lease } from "../api/types";
import { useLoad } from "../lib/load";
import { go, href, route } from "../lib/router";
import { ago, clock, count, serverNow } from "../lib/time";
import { planWords } from "../lib/words";
import { Badge, Card, Cut, Empty, Missing, PageHead, Table, isStale } from "../ui/parts";

/** How many cameras are read at a time. */
const PAGE = 500;

/** Whether a camera is meant to have no owner, and why. */
export function setAside(camera: Camera): string | undefined {
  if (camera.enabled === false) return "Disabled";
  return camera.parked ? `Parked: ${camera.parked.reason}` : undefined;
}

/** Whether the lease runs with the camera's current versions. */
export function current(camera: Camera, lease: Lease | undefined): boolean | undefined {
  if (!lease?.config_version && !lease?.zone_version) return undefined;
  return (!lease.config_version || lease.config_version === camera.config_version) && (!lease.zone_version || lease.zone_version === camera.zone_version);
}

export function Cameras() {
  const { query } = route.value;
  const [filter, setFilter] = useState("");
  const sites = useLoad("sites", (signal) => get("/api/v1/sites", { signal }), {
    every: 10_000,
    on: (batch) => batch.events.some((event) => event.event_type.startsWith("record_")),
  });
  const chosen = query.get("site") ?? "";
  const first = sites.data?.sites[0];
  const place = chosen || (first ? `${first.tenant_id}/${first.site_id}` : "");
  const [tenant = "", site = ""] = place.split("/") as [string, string?];
  const loaded = useLoad(
    place,
    async (signal) => {
      if (!place) return { cameras: [] as Camera[], more: false, leases: new Map<string, Lease>(), version: undefined, reasons: new Map<string, string>() };
      const path = { tenant_id: tenant, site_id: site };
      const [list, leases, version, plan] = await Promise.all([
        get("/api/v1/tenants/{tenant_id}/sites/{site_id}/cameras", { path, query: { limit: PAGE }, signal }),
        may("leases:read") ? get("/api/v1/leases/search", { query: { kind: "camera", limit: 1000 }, signal }) : undefined,
        get("/api/v1/tenants/{tenant_id}/sites/{site_id}/config/version", { path, signal }),
        get("/api/v1/tenants/{tenant_id}/sites/{site_id}/plan", { path, signal }),
      ]);
      return {
        cameras: list.cameras,
        more: Boolean(list.next_cursor),
        leases: new Map((leases?.leases ?? []).map((lease) => [lease.id ?? "", lease])),
        version,
        reasons: new Map(plan.moves.map((move) => [move.camera_uuid, move.to ? `Offered to ${move.to}` : `${planWords(move.reason)}, and no runner may take it`])),
      };
    },
    { every: 5000, gap: 600, on: (batch) => batch.events.some((event) => event.kind === "camera" && event.event_type !== "lease_renewed") },
  );
  const { data } = loaded;
  const found = (data?.cameras ?? []).filter((camera) => `${camera.camera_uuid} ${camera.rtsp_url}`.toLowerCase().includes(filter.toLowerCase()));
  const stale = isStale(loaded);
  return (
    <>
      <PageHead title="Cameras and zones" of={loaded}>
        {may("runners:admin") && (
          <a class="button primary" href={href("camera", undefined, { new: "1", site: place })}>
            Add a camera
          </a>
        )}
      </PageHead>
      {sites.data && sites.data.sites.length > 0 && (
        <div class="filters">
          <select aria-label="Site" value={place} onChange={(event) => go(href("cameras", undefined, { site: event.currentTarget.value }), true)}>
            {sites.data.sites.map((it) => (
              <option key={`${it.tenant_id}/${it.site_id}`} value={`${it.tenant_id}/${it.site_id}`}>
                {it.tenant_id} / {it.site_id} ({count(it.cameras)})
              </option>
            ))}
          </select>
          <input class="search grow" type="search" placeholder="Find a camera" aria-label="Find a camera" value={filter} onInput={(event) => setFilter(event.currentTarget.value)} />
          <p class="count" role="status">
            {data ? `${count(found.length)} of ${count(sites.data.sites.find((it) => `${it.tenant_id}/${it.site_id}` === place)?.cameras ?? data.cameras.length)}` : ""}
          </p>
        </div>
      )}
      {!data || !sites.data ? (
        <Missing of={sites.error ? sites : loaded} />
      ) : data.cameras.length === 0 ? (
        <Card>
          <Empty title="No camera is configured">
            {may("runners:admin") ? <p>Add the first one, here or with the API.</p> : <p>An API key with the scope runners:admin can add one.</p>}
          </Empty>
        </Card>
      ) : (
        <Card stale={stale}>
          <Table label="Cameras" columns={["Camera", "Owner", "Configuration", "#Zones", "Source", "Changed"]}>
            {found.map((camera) => {
              const name = camera.camera_uuid ?? "";
              const lease = data.leases.get(name);
              const aside = setAside(camera);
              const runs = current(camera, lease);
              return (
                <tr key={name}>
                  <th scope="row" class="mono">
                    <a href={href("camera", name)}>{name}</a>
                  </th>
                  <td>
                    {lease ? (
                      <a class="plain" href={href("lease", `camera:${name}`)}>
                        {lease.holder}
                      </a>
                    ) : aside ? (
                      <Badge tone="quiet">{aside}</Badge>
                    ) : (
                      <>
                        <Badge tone="bad">Unowned</Badge>
                        <p class="hint">{data.reasons.get(name)}</p>
                      </>
                    )}
                  </td>
                  <td class="nowrap">
                    <span class="mono note" title={camera.config_version}>
                      {(camera.config_version ?? "").slice(0, 8)}
                    </span>{" "}
                    {runs === true && <Badge tone="good">Runs it</Badge>}
                    {runs === false && <Badge tone="warn">Runs an older one</Badge>}
                  </td>
                  <td class="number">{count(camera.zones?.length ?? 0)}</td>
                  <td class="mono source" title={camera.rtsp_url ?? ""}>
                    {camera.rtsp_url}
                  </td>
                  <td class="nowrap" title={clock(camera.updated_at)}>
                    {camera.updated_at ? ago(serverNow() - Date.parse(camera.updated_at)) : ""}
                  </td>
                </tr>
              );
            })}
          </Table>
          <Cut more={data.more} at={PAGE} />
        </Card>
      )}
      {data?.version && (
        <p class="hint page-foot">
          Version of the site: configuration <span class="mono">{data.version.config_version.slice(0, 12)}</span>, zones <span class="mono">{data.version.zone_version.slice(0, 12)}</span>
          {data.version.last_updated ? `, changed ${clock(data.version.last_updated)}` : ""}.
        </p>
      )}
    </>
  );
}
