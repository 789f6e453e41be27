// One camera: its settings, its zones drawn on a picture, who has it and why.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { Refused, call, get, may } from "../api/client";
import type { Camera } from "../api/types";
import { useLoad } from "../lib/load";
import { go, href, route } from "../lib/router";
import { useStill, type Still } from "../lib/still";
import { clock } from "../lib/time";
import { check, type CameraForm, type Faults, type ZoneForm } from "../lib/validate";
import { planWords } from "../lib/words";
import { Badge, Card, Confirm, Empty, ErrorNote, Field, Missing, PageHead, toast } from "../ui/parts";
import { ZoneEditor } from "../ui/zones";
import { current, setAside } from "./cameras";

const words = (text: string): string[] =>
  text
    .split(",")
    .map((word) => word.trim())
    .filter(Boolean);

const NEW: CameraForm = {
  camera_uuid: "",
  rtsp_url: "",
  min_score: 0.3,
  iou_threshold: 0.1,
  zone_test: "center",
  allow_labels: [],
  required_capabilities: [],
  deployment_group: "",
  zones: [],
};

function formOf(camera: Camera): CameraForm {
  return {
    camera_uuid: camera.camera_uuid ?? "",
    rtsp_url: camera.rtsp_url ?? "",
    min_score: camera.min_score ?? 0.3,
    iou_threshold: camera.iou_threshold ?? 0.1,
    zone_test: camera.zone_test ?? "center",
    allow_labels: camera.allow_labels ?? [],
    required_capabilities: camera.required_capabilities ?? [],
    deployment_group: camera.deployment_group ?? "",
    zones: (camera.zones ?? []).map((zone) => ({
      ...zone,
      zone_id: zone.zone_id ?? 1,
      name: zone.name ?? "",
      kind: zone.kind ?? "include",
      priority: zone.priority ?? 100,
      polygon: (zone.polygon ?? []) as [number, number][],
      allow_labels: zone.allow_labels ?? [],
      min_score: zone.min_score ?? null,
    })),
  };
}

/** What is sent: for a change only what differs. */
function documentOf(form: CameraForm, before: CameraForm | undefined): Record<string, unknown> {
  // No labels means that all count; to the server an empty list means that none does.
  const some = (list: string[]): string[] | null => (list.length > 0 ? list : null);
  const whole: Record<string, unknown> = {
    ...form,
    allow_labels: some(form.allow_labels),
    zones: form.zones.map((zone) => ({ ...zone, allow_labels: some(zone.allow_labels) })),
    deployment_group: form.deployment_group || null,
  };
  if (!before) {
    if (!form.deployment_group) delete whole["deployment_group"];
    return whole;
  }
  const changed: Record<string, unknown> = {};
  for (const name of Object.keys(form) as (keyof CameraForm)[]) {
    if (JSON.stringify(form[name]) !== JSON.stringify(before[name])) changed[name] = whole[name];
  }
  return changed;
}

export function CameraPage() {
  const name = route.value.arg;
  const place = route.value.query.get("site") ?? "";
  const loaded = useLoad(
    name ?? "new",
    async (signal) => {
      if (!name) return undefined;
      const camera = await call<Camera>("GET", "/api/v1/cameras/{camera_uuid}", { path: { camera_uuid: name }, signal });
      const path = { camera_uuid: name };
      const [explanation, lease] = await Promise.all([
        get("/api/v1/cameras/{camera_uuid}/explain", { path, signal }),
        may("leases:read") ? get("/api/v1/leases/camera/{camera_uuid}", { path, signal }) : undefined,
      ]);
      return { camera: camera.data, etag: camera.etag, explanation, lease: lease ?? undefined };
    },
    { every: 5000, gap: 500, on: (batch) => batch.events.some((event) => event.id === name || event.id.endsWith(`/${name}`)) },
  );
  const still = useStill(name);
  if (!name) return <Editor key="new" place={place} camera={undefined} etag={undefined} still={undefined} saved={() => {}} />;
  const { data } = loaded;
  // Both at once, so that nothing jumps when the picture comes.
  if (!data || still === undefined) {
    return (
      <>
        <PageHead title={<span class="mono">{name}</span>} />
        {loaded.error instanceof Refused && loaded.error.status === 404 ? (
          <Empty title="There is no such camera">
            <a href={href("cameras")}>All cameras</a>
          </Empty>
        ) : (
          <Missing of={loaded} />
        )}
      </>
    );
  }
  const { camera, explanation, lease } = data;
  const runs = current(camera, lease);
  return (
    <>
      <Editor key={name} place={`${camera.tenant_id}/${camera.site_id}`} camera={camera} etag={data.etag} still={still ?? undefined} saved={loaded.again} />
      <div class="columns">
        <Card title="Who has it">
          <p class="lead">
            {explanation.holder ? (
              <>
                <a href={href("lease", `camera:${name}`)}>{explanation.holder}</a> has it
                {explanation.assigned && explanation.assigned !== explanation.holder ? `, ${explanation.assigned} should` : ""}.
              </>
            ) : (
              <>
                {setAside(camera) ? `${setAside(camera)}.` : "Nobody has it"}
                {!setAside(camera) && (explanation.assigned ? `; ${explanation.assigned} should.` : ", and no runner may take it.")}
              </>
            )}
          </p>
          <p class="hint">{planWords(explanation.reason)}.</p>
          <ul class="list">
            {explanation.candidates.map((candidate) => (
              <li key={candidate.runner_id}>
                <div class="list-main">
                  <span class="mono">{candidate.runner_id}</span>
                  <span class="note nowrap">
                    {candidate.load} of {candidate.capacity}
                  </span>
                </div>
                <p class="hint">{candidate.obstacles.length === 0 ? "May have it." : `It ${candidate.obstacles.map(planWords).join(" and ")}.`}</p>
              </li>
            ))}
          </ul>
          {explanation.candidates.length === 0 && <p class="empty">No runner is registered at this site.</p>}
        </Card>
        <Card title="Versions">
          <dl class="facts">
            <dt>Configuration</dt>
            <dd class="mono break">{camera.config_version}</dd>
            <dt>Zones</dt>
            <dd class="mono break">{camera.zone_version}</dd>
            <dt>Running</dt>
            <dd>
              {!lease ? (
                "Nobody runs it."
              ) : runs === undefined ? (
                `${lease.holder} did not say which version it runs.`
              ) : runs ? (
                <>
                  <Badge tone="good">Current</Badge> on {lease.holder}
                </>
              ) : (
                <>
                  <Badge tone="warn">Older</Badge> {lease.holder} runs <span class="mono">{(lease.config_version ?? "").slice(0, 12)}</span>
                </>
              )}
            </dd>
            <dt>Changed</dt>
            <dd>{clock(camera.updated_at)}</dd>
            <dt>Added</dt>
            <dd>{clock(camera.created_at)}</dd>
          </dl>
        </Card>
      </div>
    </>
  );
}

function Editor({ place, camera, etag, still, saved }: { place: string; camera: Camera | undefined; etag: string | undefined; still: Still | undefined; saved: () => void }) {
  const admin = may("runners:admin");
  const base = useRef<{ form: CameraForm; etag: string | undefined }>({ form: camera ? formOf(camera) : NEW, etag });
  const [form, setForm] = useState<CameraForm>(base.current.form);
  const [site, setSite] = useState(place);
  const [error, setError] = useState<Error | undefined>(undefined);
  const [server, setServer] = useState<Faults>({});
  const [busy, setBusy] = useState(false);
  const [touched, setTouched] = useState(Boolean(camera));
  const [removing, setRemoving] = useState(false);
  const dirty = !camera || JSON.stringify(form) !== JSON.stringify(base.current.form);

  // What somebody else saved is taken over unless this form was changed.
  const theirs = camera !== undefined && etag !== base.current.etag;
  useEffect(() => {
    if (camera && theirs && !dirty) {
      base.current = { form: formOf(camera), etag };
      setForm(base.current.form);
    }
  }, [etag, dirty]);

  const faults = useMemo(() => ({ ...server, ...check(form) }), [form, server]);
  const siteFault = /^[A-Za-z0-9._-]+\/[A-Za-z0-9._-]+$/.test(site) ? undefined : "A tenant and a site, such as acme/north.";
  const shown = (field: string): string | undefined => (touched ? faults[field] : undefined);
  const wrong = Object.keys(faults).length > 0 || Boolean(siteFault);
  const set = (changes: Partial<CameraForm>) => {
    setTouched(true);
    setServer({});
    setForm({ ...form, ...changes });
  };
  const [tenant = "", siteName = ""] = site.split("/") as [string, string?];
  const path = { tenant_id: tenant, site_id: siteName, camera_uuid: form.camera_uuid };

  const save = async (event: Event | undefined, force = false) => {
    event?.preventDefault();
    setTouched(true);
    if (wrong) return;
    setBusy(true);
    setError(undefined);
    try {
      if (camera) {
        const headers: Record<string, string> = {};
        if (!force && base.current.etag) headers["if-match"] = base.current.etag;
        const body = documentOf(form, base.current.form);
        const answer = await call<Camera>("PUT", "/api/v1/tenants/{tenant_id}/sites/{site_id}/cameras/{camera_uuid}", { path, body, headers });
        base.current = { form: formOf(answer.data), etag: answer.etag };
        setForm(base.current.form);
        toast("Saved.");
        saved();
      } else {
        await call<Camera>("POST", "/api/v1/tenants/{tenant_id}/sites/{site_id}/cameras", { path, body: documentOf(form, undefined) });
        toast(`Added ${form.camera_uuid}.`);
        go(href("camera", form.camera_uuid));
      }
    } catch (error) {
      setError(error as Error);
      if (error instanceof Refused && error.problem?.errors) {
        setServer(Object.fromEntries(error.problem.errors.map((it) => [it.field, it.expected ?? "Not accepted"])));
      }
    } finally {
      setBusy(false);
    }
  };

  const conflict = error instanceof Refused && error.status === 412;
  const text = (field: "camera_uuid" | "rtsp_url" | "deployment_group", label: string, hint?: string, disabled = false) => (
    <Field label={label} hint={hint} fault={shown(field)}>
      {(id, described) => <input id={id} aria-describedby={described} class={field === "deployment_group" ? "" : "mono"} disabled={disabled || !admin} value={form[field]} onInput={(event) => set({ [field]: event.currentTarget.value })} spellcheck={false} />}
    </Field>
  );
  const number = (field: "min_score" | "iou_threshold", label: string, hint: string) => (
    <Field label={label} hint={hint} fault={shown(field)}>
      {(id, described) => (
        <input id={id} aria-describedby={described} type="number" min="0" max="1" step="0.05" disabled={!admin} value={Number.isNaN(form[field]) ? "" : form[field]} onInput={(event) => set({ [field]: event.currentTarget.valueAsNumber })} />
      )}
    </Field>
  );
  const list = (field: "allow_labels" | "required_capabilities", label: string, hint: string) => (
    <Field label={label} hint={hint} fault={shown(field)}>
      {(id, described) => <input id={id} aria-describedby={described} disabled={!admin} defaultValue={form[field].join(", ")} onInput={(event) => set({ [field]: words(event.currentTarget.value) })} />}
    </Field>
  );
  return (
    <form onSubmit={(event) => void save(event)} noValidate>
      <PageHead title={camera ? <span class="mono break">{camera.camera_uuid}</span> : "New camera"} note={camera ? `${camera.tenant_id} / ${camera.site_id}` : undefined}>
        <a class="button" href={href("cameras", undefined, { site: place })}>
          All cameras
        </a>
        {admin && camera && (
          <button type="button" class="button" onClick={() => setRemoving(true)}>
            Remove …
          </button>
        )}
        {admin && (
          <button class="button primary" disabled={busy || !dirty || (touched && wrong)}>
            {camera ? "Save" : "Add"}
          </button>
        )}
      </PageHead>
      {!admin && <p class="notice">Your API key can look, but not change anything here.</p>}
      {theirs && dirty && !conflict && <p class="notice warn">Somebody else changed this camera while you were editing it.</p>}
      {conflict ? (
        <div class="notice warn" role="alert">
          <p>Somebody else changed this camera while you were editing it. Nothing was saved.</p>
          <p class="with-badge">
            <button
              type="button"
              class="button small"
              onClick={() => {
                if (camera) {
                  base.current = { form: formOf(camera), etag };
                  setForm(base.current.form);
                }
                setError(undefined);
                saved();
              }}
            >
              Show theirs
            </button>
            <button type="button" class="button small" onClick={() => void save(undefined, true)}>
              Save mine over it
            </button>
          </p>
        </div>
      ) : (
        error && <ErrorNote error={error} />
      )}
      <div class="columns editor">
        <Card title="Settings">
          <div class="form">
            {!camera && (
              <Field label="Tenant / site" fault={touched ? siteFault : undefined}>
                {(id, described) => <input id={id} aria-describedby={described} class="mono" placeholder="acme/north" value={site} onInput={(event) => setSite(event.currentTarget.value)} />}
              </Field>
            )}
            {text("camera_uuid", "Name", camera ? undefined : "Can be given only once.", Boolean(camera))}
            {text("rtsp_url", "Source", camera?.rtsp_url && !may("credentials:read") ? "Shown without its user and password." : undefined)}
            <div class="form-row">
              {number("min_score", "Least score", "How sure a detection must be.")}
              {number("iou_threshold", "Least overlap", "With a zone, from 0 to 1.")}
            </div>
            <Field label="A detection belongs to a zone when">
              {(id) => (
                <select id={id} disabled={!admin} value={form.zone_test} onChange={(event) => set({ zone_test: event.currentTarget.value as CameraForm["zone_test"] })}>
                  <option value="center">its centre lies inside</option>
                  <option value="center+iou">its centre lies inside and enough overlaps</option>
                </select>
              )}
            </Field>
            {list("allow_labels", "Labels that count", "Separated by commas; none means all.")}
            {list("required_capabilities", "Needs of a runner", "Such as gpu; separated by commas.")}
            {text("deployment_group", "Only this deployment group", "Empty means any.")}
          </div>
        </Card>
        <Card title={`Zones (${form.zones.length})`} class="zones-card">
          <ZoneEditor zones={form.zones} faults={touched ? faults : {}} editable={admin} still={still} onChange={(zones: ZoneForm[]) => set({ zones })} />
        </Card>
      </div>
      {removing && camera && (
        <Confirm
          title={`Remove ${camera.camera_uuid}?`}
          action="Remove"
          danger
          onClose={() => setRemoving(false)}
          onConfirm={async () => {
            await call("DELETE", "/api/v1/tenants/{tenant_id}/sites/{site_id}/cameras/{camera_uuid}", { path });
            toast(`Removed ${camera.camera_uuid}.`);
            go(href("cameras", undefined, { site: place }));
          }}
        >
          <p>Its settings and zones are deleted, and whoever has it loses it in the same step.</p>
        </Confirm>
      )}
    </form>
  );
}
