// Zones drawn on a picture: click to add points, drag to move them, numbers for whoever has no mouse.

import { useEffect, useRef, useState } from "preact/hooks";
import { outside, type Point } from "../lib/polygon";
import type { Still } from "../lib/still";
import { ago, clock, now } from "../lib/time";
import type { Faults, ZoneForm } from "../lib/validate";
import { Field } from "./parts";

/** The picture's size until another one is known, in pixels. */
const SIZE: Point = [1280, 720];

const round = (value: number): number => Math.round(value);

/** A picture from this machine's disk. */
interface Own {
  url: string;
  name: string;
  size: Point;
}

/** The picture that zones are drawn on: one's own, the camera's newest still, or none. */
function usePicture(zones: ZoneForm[], still: Still | undefined) {
  const [own, setOwn] = useState<Own | undefined>(undefined);
  const [fault, setFault] = useState<string | undefined>(undefined);
  // Without a picture, large enough for every zone that there was.
  const [grid] = useState<Point>(() => {
    const points = zones.flatMap((zone) => zone.polygon);
    const most = (at: 0 | 1) => Math.max(SIZE[at], ...points.map((point) => point[at]));
    return [most(0), most(1)];
  });
  useEffect(() => () => void (own && URL.revokeObjectURL(own.url)), [own]);
  const load = (file: File | undefined) => {
    if (!file) return;
    const url = URL.createObjectURL(file);
    const image = new Image();
    image.onload = () => {
      setFault(undefined);
      // It is stretched over the camera's own picture where that is known: zones count in its pixels.
      setOwn({ url, name: file.name, size: still?.size ?? [image.naturalWidth, image.naturalHeight] });
    };
    image.onerror = () => {
      URL.revokeObjectURL(url);
      setFault(`${file.name} is not a picture that this browser can show.`);
    };
    image.src = url;
  };
  return { own, load, fault, drop: () => setOwn(undefined), url: own?.url ?? still?.url, size: own?.size ?? still?.size ?? grid };
}

export function ZoneEditor({ zones, faults, editable, still, onChange }: { zones: ZoneForm[]; faults: Faults; editable: boolean; still: Still | undefined; onChange: (zones: ZoneForm[]) => void }) {
  const [selected, setSelected] = useState(0);
  const picture = usePicture(zones, still);
  const { size } = picture;
  const [drawing, setDrawing] = useState(false);
  const svg = useRef<SVGSVGElement>(null);
  const dragging = useRef<number | undefined>(undefined);
  const zone = zones[selected];
  const beyond = picture.url ? zones.filter((it) => outside(it.polygon, size)) : [];

  const change = (index: number, changes: Partial<ZoneForm>) => onChange(zones.map((it, at) => (at === index ? { ...it, ...changes } : it)));
  const at = (event: PointerEvent): Point => {
    // A tall picture leaves room beside it: only the browser knows where the picture itself lies.
    const matrix = svg.current?.getScreenCTM()?.inverse();
    if (!matrix) return [0, 0];
    const { x, y } = new DOMPoint(event.clientX, event.clientY).matrixTransform(matrix);
    const clamp = (value: number, most: number) => Math.max(0, Math.min(most, round(value)));
    return [clamp(x, size[0]), clamp(y, size[1])];
  };
  const setPoint = (index: number, point: Point) => zone && change(selected, { polygon: zone.polygon.map((it, place) => (place === index ? point : it)) });
  const add = () => {
    const id = Math.max(0, ...zones.map((it) => it.zone_id)) + 1;
    onChange([...zones, { zone_id: id, name: `Zone ${id}`, kind: "include", priority: 100, polygon: [], allow_labels: [], min_score: null }]);
    setSelected(zones.length);
    setDrawing(true);
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
        {picture.url ? <image href={picture.url} width={size[0]} height={size[1]} preserveAspectRatio="none" /> : lines}
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
          <input
            type="file"
            accept="image/*"
            onChange={(event) => {
              picture.load(event.currentTarget.files?.[0]);
              // The same file can be chosen again.
              event.currentTarget.value = "";
            }}
          />
        </label>
        {picture.own && (
          <button type="button" class="button small" onClick={picture.drop}>
            {still ? "Back to the camera's picture" : "Without a picture"}
          </button>
        )}
      </div>
      {picture.fault && (
        <p class="fault" role="alert">
          {picture.fault}
        </p>
      )}
      <p class="hint picture-note">
        {picture.own ? (
          `${picture.own.name}, ${size[0]} × ${size[1]} pixels. It stays in this browser.`
        ) : still ? (
          <>
            {`The camera's picture, ${size[0]} × ${size[1]} pixels, `}
            <span title={clock(still.at)}>{ago(now.value - still.at)}</span>.
          </>
        ) : (
          `No picture of this camera is known yet: ${size[0]} × ${size[1]} pixels are assumed. You can load one from a file.`
        )}
      </p>
      {beyond.length > 0 && (
        <p class="fault" role="status">
          {`${beyond.map((it) => it.name || `Zone ${it.zone_id}`).join(", ")}: partly outside of the picture.`}
        </p>
      )}
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
