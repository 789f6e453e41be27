// The deployments of every group of runners: how far each is, and starting one.

import { useState } from "preact/hooks";
import { get, may, post } from "../api/client";
import type { Deployment, Runner } from "../api/types";
import { useLoad } from "../lib/load";
import { go, href } from "../lib/router";
import { ago, clock, count, now, plural } from "../lib/time";
import { deploymentWords, sentence } from "../lib/words";
import { Badge, Card, Confirm, Cut, Empty, Field, Missing, PageHead, Table, isStale, toast } from "../ui/parts";

/** How many deployments and runners are read; more are counted. */
const PAGE = 1000;

/** A group of runners that are deployed together. */
export interface Group {
  tenant: string;
  site: string;
  group: string;
  versions: string[];
}

export const groupPath = (it: Pick<Group, "tenant" | "site" | "group">): string => `${it.tenant}/${it.site}/${it.group}`;

/** The groups that registered runners belong to, in order. */
function groupsOf(runners: Runner[]): Group[] {
  const groups = new Map<string, Group>();
  for (const runner of runners) {
    const it: Group = { tenant: runner.tenant_id ?? "", site: runner.site_id ?? "", group: runner.deployment_group ?? "", versions: [] };
    if (!it.tenant || !it.site || !it.group) continue;
    const known = groups.get(groupPath(it)) ?? it;
    const version = runner.deployment_version;
    if (version && !known.versions.includes(version)) known.versions.push(version);
    groups.set(groupPath(it), known);
  }
  return [...groups.values()].sort((a, b) => groupPath(a).localeCompare(groupPath(b), "en", { numeric: true }));
}

async function read(signal: AbortSignal) {
  const [list, runners] = await Promise.all([get("/api/v1/deployments", { query: { limit: PAGE }, signal }), get("/api/v1/runners", { query: { limit: PAGE }, signal })]);
  const groups = groupsOf(runners.runners);
  const deployed = new Set(list.deployments.map((it) => groupPath({ tenant: it.tenant_id, site: it.site_id, group: it.deployment_group })));
  return { deployments: list.deployments, more: Boolean(list.next_cursor), groups, never: groups.filter((it) => !deployed.has(groupPath(it))) };
}

export function Deployments() {
  const loaded = useLoad("deployments", read, {
    every: 4000,
    gap: 500,
    on: (batch) => batch.events.some((event) => /^(deployment|camera|runner)$/.test(event.kind) && event.event_type !== "lease_renewed"),
  });
  const [starting, setStarting] = useState(false);
  const { data } = loaded;
  const admin = may("runners:admin");
  return (
    <>
      <PageHead title="Deployments" of={loaded} every={4000} note="A group's cameras move to another version in steps, and back when it does not do well.">
        {admin && data && data.groups.length > 0 && (
          <button type="button" class="button primary" onClick={() => setStarting(true)}>
            Start …
          </button>
        )}
      </PageHead>
      {!data ? (
        <Missing of={loaded} />
      ) : (
        <Card stale={isStale(loaded, 4000)}>
          {data.deployments.length + data.never.length === 0 ? (
            <Empty title="Nothing to deploy">
              <p>Runners belong to a deployment group and have a version. None is registered yet.</p>
            </Empty>
          ) : (
            <Table label="Deployments" columns={["Group", "State", "Versions", "Cameras on the new one", "Last change"]} class="deployments">
              {data.deployments.map((it) => (
                <Row key={groupPath({ tenant: it.tenant_id, site: it.site_id, group: it.deployment_group })} it={it} />
              ))}
              {data.never.map((it) => (
                <tr key={groupPath(it)} data-group={it.group}>
                  <th scope="row">
                    <a href={href("deployment", groupPath(it))}>{it.group}</a>
                    <p class="hint nowrap">{`${it.tenant} / ${it.site}`}</p>
                  </th>
                  <td>
                    <Badge tone="quiet">Never deployed</Badge>
                  </td>
                  <td class="mono">{it.versions.join(", ")}</td>
                  <td class="note none">–</td>
                  <td class="note none">–</td>
                </tr>
              ))}
            </Table>
          )}
          <Cut more={data.more} at={PAGE} />
        </Card>
      )}
      {starting && data && <Start groups={data.groups} onClose={() => setStarting(false)} />}
    </>
  );
}

function Row({ it }: { it: Deployment }) {
  const group = { tenant: it.tenant_id, site: it.site_id, group: it.deployment_group };
  const words = deploymentWords(it.state);
  return (
    <tr data-group={it.deployment_group} data-state={it.state}>
      <th scope="row">
        <a href={href("deployment", groupPath(group))}>{it.deployment_group}</a>
        <p class="hint nowrap">{`${it.tenant_id} / ${it.site_id}`}</p>
      </th>
      <td>
        <Badge tone={words.tone}>{words.word}</Badge>
      </td>
      <td class="mono nowrap">
        {it.from_version} → {it.to_version}
      </td>
      <td>
        <Progress it={it} />
      </td>
      <td>
        <span class="nowrap" title={clock(it.updated_at)}>
          {ago(now.value - Date.parse(it.updated_at))}
        </span>
        <p class="hint">{sentence(it.note)}</p>
      </td>
    </tr>
  );
}

/** How many of the group's cameras the new version has. */
export function Progress({ it }: { it: Deployment }) {
  const all = it.cameras_old + it.cameras_new;
  const share = all === 0 ? 0 : it.cameras_new / all;
  return (
    <div class="load" data-new={it.cameras_new} data-old={it.cameras_old}>
      <span>{`${count(it.cameras_new)} of ${plural(all, "camera")}`}</span>
      <span class={`load-track ${it.state === "rolled_back" ? "back" : ""}`} aria-hidden="true">
        <span style={{ width: `${share * 100}%` }} />
      </span>
    </div>
  );
}

/** Asks what to deploy where, and begins. */
export function Start({ groups, chosen, onClose }: { groups: Group[]; chosen?: string; onClose: () => void }) {
  const [path, setPath] = useState(chosen ?? groupPath(groups[0]!));
  const [version, setVersion] = useState("");
  const [step, setStep] = useState("4");
  const [timeout, setTimeout] = useState("120");
  const group = groups.find((it) => groupPath(it) === path) ?? groups[0]!;
  return (
    <Confirm
      title="Start a deployment"
      action="Start"
      onClose={onClose}
      onConfirm={async () => {
        const body = {
          tenant_id: group.tenant,
          site_id: group.site,
          deployment_group: group.group,
          to_version: version.trim(),
          step: Number(step),
          health_timeout_seconds: Number(timeout),
        };
        await post("/api/v1/deployments", { body });
        toast(`${group.group}: version ${body.to_version} is being deployed.`);
        go(href("deployment", groupPath(group)));
      }}
    >
      <div class="form">
        <Field label="Group" hint={`Its runners have version ${group.versions.join(", ")}.`}>
          {(id, described) => (
            <select id={id} aria-describedby={described} value={path} onChange={(event) => setPath(event.currentTarget.value)}>
              {groups.map((it) => (
                <option key={groupPath(it)} value={groupPath(it)}>{`${it.group} (${it.tenant} / ${it.site})`}</option>
              ))}
            </select>
          )}
        </Field>
        <Field label="New version" hint="Runners with it may come later: the deployment waits for them.">
          {(id, described) => (
            <>
              <input id={id} aria-describedby={described} class="mono" required maxlength={255} list={`${id}-known`} value={version} onInput={(event) => setVersion(event.currentTarget.value)} />
              <datalist id={`${id}-known`}>
                {group.versions.map((it) => (
                  <option key={it} value={it} />
                ))}
              </datalist>
            </>
          )}
        </Field>
        <div class="form-row">
          <Field label="Cameras per step">
            {(id) => <input id={id} type="number" required min={1} max={1000} value={step} onInput={(event) => setStep(event.currentTarget.value)} />}
          </Field>
          <Field label="Seconds to be healthy">
            {(id) => <input id={id} type="number" required min={1} max={3600} value={timeout} onInput={(event) => setTimeout(event.currentTarget.value)} />}
          </Field>
        </div>
        <p class="hint">Each step waits until its cameras work. If one fails, or is not healthy in time, every camera goes back.</p>
      </div>
    </Confirm>
  );
}
