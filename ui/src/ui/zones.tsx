// Zones drawn on a picture: click to add points, drag to move them, numbers for whoever has no mouse.

import { useEffect, useRef, useState } from "preact/hooks";
import type { Point } from "../lib/polygon";
import type { Faults, ZoneForm } from "../lib/validate";
import { Field } from "./parts";

/** The picture's size until another one is known, in pixels. */
const SIZE: Point = [1280, 720];

const round = (value: number): number => Math.round(value);

export function ZoneEditor({ zones, faults, editable, onChange }: { zones: ZoneForm[]; faults: Faults; editable: boolean; onChange: (zones: ZoneForm[]) => void }) {
  const [selected, setSelected] = useState(0);
  const [size, setSize] = useState<Point>(() => {
    const points = zones.flatMap((zone) => zone.polygon);
    const most = (at: 0 | 1) => Math.max(SIZE[at], ...points.map((point) => point[at]));
    return [most(0), most(1)];
  });
  const [picture, setPicture] = useState<string | undefined>(undefined);
  const [drawing, setDrawing] = useState(false);
  const svg = useRef<SVGSVGElement>(null);
  const dragging = useRef<number | undefined>(undefined);
  const zone = zones[selected];
  useEffect(() => () => void (picture && URL.revokeObjectURL(picture)), [picture]);

  const change = (index: number, changes: Partial<ZoneForm>) => onChange(zones.map((it, at) => (at === index ? { ...it, ...changes } : it)));
  const at = (event: PointerEvent): Point => {
    const box = svg.current?.getBoundingClientRect();
    if (!box) return [0, 0];
    const clamp = (value: number, most: number) => Math.max(0, Math.min(most, round(value)));
    return [clamp(((event.clientX - box.left) / box.width) * size[0], size[0]), clamp(((event.clientY - box.top) / box.height) * size[1], size[1])];
  };
  const setPoint = (index: number, point: Point) => zone && change(selected, { polygon: zone.polygon.map((it, place) => (place === index ? point : it)) });
  const add = () => {
    const id = Math.max(0, ...zones.map((it) => it.zone_id)) + 1;
    onChange([...zones, { zone_id: id, name: `Zone ${id}`, kind: "include", priority: 100, polygon: [], allow_labels: [], min_score: null }]);
    setSelected(zones.length);
    setDrawing(true);
  };
  const load = (file: File | undefined) => {
    if (!file) return;
    const url = URL.createObjectURL(file);
    const image = new Image();
    image.onload = () => {
      setSize([image.naturalWidth, image.naturalHeight]);
      setPicture(url);
    };
    image.onerror = () => URL.revokeObjectURL(url);
    image.src = url;
  };
  const handle = size[0] / 110;
  const lines = [1, 2, 3].flatMap((step) => [
    <line key={`x${step}`} x1={(size[0] * step) / 4} x2={(size[0] * step) / 4} y1="0" y2={size[1]} class="grid-line" />,
    <line key={`y${step}`} y1={(size[1] * step) / 4} y2={(size[1] * step) / 4} x1="0" x2={size[0]} class="grid-line" />,
  ]);
  return (
    <div class="zone-editor">
      <svg
        ref={svg}
        class={`canvas ${drawing ? "drawing" : ""}`}
        viewBox={`0 0 ${size[0]} ${size[1]}`}
        role="img"
        aria-label={`${zones.length} zones on a picture of ${size[0]} by ${size[1]} pixels`}
        onPointerDown={(event) => {
          if (!editable || !drawing || !zone || dragging.current !== undefined) return;
          change(selected, { polygon: [...zone.polygon, at(event)] });
        }}
        onPointerMove={(event) => {
          if (dragging.current !== undefined) setPoint(dragging.current, at(event));
        }}
        onPointerUp={() => (dragging.current = undefined)}
        onPointerLeave={() => (dragging.current = undefined)}
      >
        <rect width={size[0]} height={size[1]} class="canvas-back" />
        {picture && <image href={picture} width={size[0]} height={size[1]} />}
        {!picture && lines}
        {zones.map((it, index) => (
          <g key={index} class={`zone ${it.kind} ${index === selected ? "selected" : ""} ${faults[`zones[${index}].polygon`] ? "wrong" : ""}`}>
            {it.polygon.length > 2 ? (
              <polygon points={it.polygon.join(" ")} onPointerDown={() => !drawing && setSelected(index)} />
            ) : (
              <polyline points={it.polygon.join(" ")} />
            )}
          </g>
        ))}
        {editable &&
          zone?.polygon.map(([x, y], index) => (
            <circle
              key={index}
              cx={x}
              cy={y}
              r={handle}
              class="handle"
              onPointerDown={(event) => {
                event.stopPropagation();
                dragging.current = index;
                (event.currentTarget as Element).setPointerCapture(event.pointerId);
              }}
            />
          ))}
      </svg>
      <div class="zone-tools">
        {editable && (
          <>
            <button type="button" class="button small" onClick={add}>
              Add a zone
            </button>
            {zone && (
              <button type="button" class={`button small ${drawing ? "primary" : ""}`} aria-pressed={drawing} onClick={() => setDrawing(!drawing)}>
                {drawing ? "Done drawing" : "Draw points"}
              </button>
            )}
            {zone && zone.polygon.length > 0 && (
              <button type="button" class="button small" onClick={() => change(selected, { polygon: zone.polygon.slice(0, -1) })}>
                Remove last point
              </button>
            )}
          </>
        )}
        <label class="button small file">
          Picture …
          <input type="file" accept="image/*" onChange={(event) => load(event.currentTarget.files?.[0])} />
        </label>
      </div>
      {drawing && <p class="hint">Click on the picture to add points in order. The last one is joined to the first.</p>}
      {zones.length > 0 && (
        <div class="zone-tabs" role="tablist" aria-label="Zones">
          {zones.map((it, index) => (
            <button key={index} type="button" role="tab" aria-selected={index === selected} class={Object.keys(faults).some((field) => field.startsWith(`zones[${index}].`)) ? "wrong" : ""} onClick={() => (setSelected(index), setDrawing(false))}>
              {it.name || `Zone ${it.zone_id}`}
            </button>
          ))}
        </div>
      )}
      {zone && (
        <div class="zone-form" role="tabpanel" aria-label={zone.name}>
          {faults[`zones[${selected}].polygon`] && (
            <p class="fault" role="status">
              {faults[`zones[${selected}].polygon`]}
            </p>
          )}
          <div class="form-row">
            <Field label="Zone name" fault={faults[`zones[${selected}].name`]}>
              {(id, described) => <input id={id} aria-describedby={described} disabled={!editable} value={zone.name} onInput={(event) => change(selected, { name: event.currentTarget.value })} />}
            </Field>
            <Field label="Number" fault={faults[`zones[${selected}].zone_id`]} class="short">
              {(id, described) => <input id={id} aria-describedby={described} type="number" min="1" disabled={!editable} value={zone.zone_id} onInput={(event) => change(selected, { zone_id: event.currentTarget.valueAsNumber })} />}
            </Field>
          </div>
          <div class="form-row">
            <Field label="Motion inside">
              {(id) => (
                <select id={id} disabled={!editable} value={zone.kind} onChange={(event) => change(selected, { kind: event.currentTarget.value as ZoneForm["kind"] })}>
                  <option value="include">counts</option>
                  <option value="exclude">is ignored</option>
                </select>
              )}
            </Field>
            <Field label="Priority" class="short">
              {(id) => <input id={id} type="number" disabled={!editable} value={zone.priority} onInput={(event) => change(selected, { priority: Math.trunc(event.currentTarget.valueAsNumber || 0) })} />}
            </Field>
          </div>
          <details>
            <summary>Points as numbers ({zone.polygon.length})</summary>
            <ol class="points">
              {zone.polygon.map(([x, y], index) => (
                <li key={index}>
                  <input type="number" aria-label={`Point ${index + 1}, x`} disabled={!editable} value={x} onInput={(event) => setPoint(index, [event.currentTarget.valueAsNumber, y])} />
                  <input type="number" aria-label={`Point ${index + 1}, y`} disabled={!editable} value={y} onInput={(event) => setPoint(index, [x, event.currentTarget.valueAsNumber])} />
                  {editable && (
                    <button type="button" class="icon-button" aria-label={`Remove point ${index + 1}`} onClick={() => change(selected, { polygon: zone.polygon.filter((_, place) => place !== index) })}>
                      ✕
                    </button>
                  )}
                </li>
              ))}
            </ol>
            {editable && (
              <button type="button" class="button small" onClick={() => change(selected, { polygon: [...zone.polygon, [round(size[0] / 2), round(size[1] / 2)]] })}>
                Add a point
              </button>
            )}
          </details>
          {editable && (
            <button
              type="button"
              class="link danger-text"
              onClick={() => {
                onChange(zones.filter((_, index) => index !== selected));
                setSelected(Math.max(0, selected - 1));
                setDrawing(false);
              }}
            >
              Remove this zone
            </button>
          )}
        </div>
      )}
      {zones.length === 0 && <p class="empty">Without zones the whole picture counts.</p>}
    </div>
  );
}
