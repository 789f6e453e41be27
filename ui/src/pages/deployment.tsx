// One group's deployment: how far it is, what it waits for, what happened, and orders to it.

import { useState } from "preact/hooks";
import { Refused, get, may, post } from "../api/client";
import type { Deployment } from "../api/types";
import { useLoad } from "../lib/load";
import { href, route } from "../lib/router";
import { ago, clock, count, duration, now, plural } from "../lib/time";
import { deploymentWords, sentence } from "../lib/words";
import { Badge, Card, Confirm, Empty, Missing, PageHead, isStale, toast } from "../ui/parts";
import { type Group, Start, groupPath } from "./deployments";

/** How many shifted cameras are named. */
const NAMED = 60;

type Order = "pause" | "resume" | "rollback";

const ORDERS = {
  pause: "/api/v1/deployments/{tenant_id}/{site_id}/{deployment_group}/pause",
  resume: "/api/v1/deployments/{tenant_id}/{site_id}/{deployment_group}/resume",
  rollback: "/api/v1/deployments/{tenant_id}/{site_id}/{deployment_group}/rollback",
} as const;

const ACTIONS: Record<Order, string> = { pause: "Pause", resume: "Resume", rollback: "Roll back" };
const DONE: Record<Order, string> = { pause: "paused", resume: "goes on", rollback: "rolled back" };

export function DeploymentPage() {
  const [tenant = "", site = "", group = ""] = (route.value.arg ?? "").split("/");
  const path = { tenant_id: tenant, site_id: site, deployment_group: group };
  const [asking, setAsking] = useState<Order | undefined>(undefined);
  const [starting, setStarting] = useState<Group | undefined>(undefined);
  const loaded = useLoad(
    groupPath({ tenant, site, group }),
    async (signal) => {
      const runners = await get("/api/v1/runners", { query: { tenant_id: tenant, site_id: site, limit: 1000 }, signal });
      const own = runners.runners.filter((it) => it.deployment_group === group);
      try {
        return { runners: own, it: await get("/api/v1/deployments/{tenant_id}/{site_id}/{deployment_group}", { path, signal }) };
      } catch (error) {
        // A group that was never deployed.
        if (error instanceof Refused && error.status === 404) return { runners: own, it: undefined };
        throw error;
      }
    },
    { every: 3000, gap: 300, on: (batch) => batch.events.some((event) => /^(deployment|camera|runner)$/.test(event.kind) && event.event_type !== "lease_renewed") },
  );
  const { data } = loaded;
  const it = data?.it;
  const admin = may("runners:admin");
  const open = it?.state === "running" || it?.state === "paused";
  const stale = isStale(loaded, 3000);
  const start = () => {
    const versions = [...new Set((data?.runners ?? []).map((runner) => runner.deployment_version ?? "").filter(Boolean))];
    setStarting({ tenant, site, group, versions });
  };
  return (
    <>
      <PageHead title={group} note={`${tenant} / ${site}`} of={loaded} every={3000}>
        <a class="button" href={href("deployments")}>
          All deployments
        </a>
        {admin && data && !open && (
          <button type="button" class="button" onClick={start}>
            Start …
          </button>
        )}
        {admin && it?.state === "running" && (
          <button type="button" class="button" onClick={() => setAsking("pause")}>
            Pause …
          </button>
        )}
        {admin && it?.state === "paused" && (
          <button type="button" class="button" onClick={() => setAsking("resume")}>
            Resume …
          </button>
        )}
        {admin && it && it.state !== "rolled_back" && (
          <button type="button" class="button danger" onClick={() => setAsking("rollback")}>
            Roll back …
          </button>
        )}
      </PageHead>
      {!data ? (
        <Missing of={loaded} />
      ) : !it ? (
        <Card>
          <Empty title="Never deployed">
            <p>{data.runners.length === 0 ? "No runner of this group is registered." : `${plural(data.runners.length, "runner")} of this group are registered; no deployment has moved their cameras yet.`}</p>
          </Empty>
        </Card>
      ) : (
        <Shown it={it} stale={stale} runners={data.runners} />
      )}
      {starting && <Start groups={[starting]} onClose={() => (setStarting(undefined), loaded.again())} />}
      {asking && it && (
        <Confirm
          title={`${ACTIONS[asking]} ${group}?`}
          action={ACTIONS[asking]}
          danger={asking === "rollback"}
          onClose={() => setAsking(undefined)}
          onConfirm={async () => {
            await post(ORDERS[asking], { path });
            toast(`${group}: ${DONE[asking]}.`);
            loaded.again();
          }}
        >
          <p>
            {asking === "pause"
              ? "No further camera moves. It still goes back by itself when the new version does not do well."
              : asking === "resume"
                ? "Cameras move again, step by step."
                : `Every camera goes back to version ${it.from_version}: ${plural(it.cameras_new, "camera")} on version ${it.to_version} now.`}
          </p>
        </Confirm>
      )}
    </>
  );
}

function Shown({ it, stale, runners }: { it: Deployment; stale: boolean; runners: { deployment_version?: string | null; status: string }[] }) {
  const words = deploymentWords(it.state);
  const all = it.cameras_old + it.cameras_new;
  const share = all === 0 ? 0 : (it.cameras_new / all) * 100;
  const with_ = (version: string) => runners.filter((runner) => runner.deployment_version === version && runner.status !== "inactive").length;
  return (
    <div class="columns lease-columns">
      <Card title="Progress" stale={stale} action={<Badge tone={words.tone}>{words.word}</Badge>}>
        <div class="sides">
          <Side name="Before" version={it.from_version} cameras={it.cameras_old} runners={with_(it.from_version)} />
          <Side name="New" version={it.to_version} cameras={it.cameras_new} runners={it.runners_new} own />
        </div>
        <div class={`meter ${it.state === "rolled_back" ? "back" : ""}`} role="img" aria-label={`${count(it.cameras_new)} of ${plural(all, "camera")} on the new version`} data-new={it.cameras_new} data-old={it.cameras_old}>
          <span style={{ width: `${share}%` }} />
        </div>
        <p class="lead">{sentence(it.note)}</p>
        <dl class="facts">
          <dt>Step</dt>
          <dd>{plural(it.step, "camera")} at a time</dd>
          <dt>Health gate</dt>
          <dd>{`A step must work within ${duration(Number(it.health_timeout_seconds) * 1000)}; otherwise every camera goes back.`}</dd>
          <dt>Started</dt>
          <dd>
            {clock(it.started_at)} <span class="note">({ago(now.value - Date.parse(it.started_at))})</span>
          </dd>
          <dt>Last change</dt>
          <dd>
            {clock(it.updated_at)} <span class="note">({ago(now.value - Date.parse(it.updated_at))})</span>
          </dd>
        </dl>
        {it.shifted.length > 0 && (
          <details class="moves">
            <summary>{plural(it.shifted.length, "camera")} shifted</summary>
            <ul class="names">
              {it.shifted.slice(0, NAMED).map((camera) => (
                <li key={camera}>
                  <a class="mono" href={href("camera", camera)}>
                    {camera}
                  </a>
                </li>
              ))}
            </ul>
            {it.shifted.length > NAMED && <p class="hint">{`The first ${NAMED} of ${count(it.shifted.length)}.`}</p>}
          </details>
        )}
      </Card>
      <Card title="History" stale={stale}>
        <ol class="timeline">
          {[...it.history].reverse().map((event, index) => (
            <li key={`${event.at} ${event.what}`} class={index === 0 ? "current" : ""}>
              <div class="timeline-head">
                <strong>{sentence(event.what)}</strong>
              </div>
              <p class="hint">
                {clock(event.at)} <span class="mono">{event.to_version}</span>
              </p>
            </li>
          ))}
        </ol>
      </Card>
    </div>
  );
}

const Side = ({ name, version, cameras, runners, own }: { name: string; version: string; cameras: number; runners: number; own?: boolean }) => (
  <div class={`version ${own ? "new" : ""}`}>
    <span class="stat-label">{name}</span>
    <span class="version-name mono">{version}</span>
    <span class="note">
      {plural(cameras, "camera")}, {plural(runners, "runner")}
    </span>
  </div>
);
