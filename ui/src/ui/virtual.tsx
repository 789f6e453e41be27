// A list that draws only what is in sight, however long it is.

import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

export interface VirtualProps<T> {
  /** How many rows there are in all. */
  total: number;
  /** The height of one row in px. */
  rowHeight: number;
  /** The row at a place, if it is known. */
  row: (index: number) => T | undefined;
  render: (item: T, index: number) => ComponentChildren;
  keyOf: (item: T) => string;
  /** Told which rows are in sight. */
  onRange: (first: number, last: number) => void;
  label: string;
  head: ComponentChildren;
}

const AROUND = 8;

export function Virtual<T>(props: VirtualProps<T>) {
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ first: 0, last: 30 });
  const { total, rowHeight } = props;

  const measure = () => {
    const element = box.current;
    if (!element) return;
    const first = Math.max(0, Math.floor(element.scrollTop / rowHeight) - AROUND);
    const last = Math.ceil((element.scrollTop + element.clientHeight) / rowHeight) + AROUND;
    setView((before) => (before.first === first && before.last === last ? before : { first, last }));
  };
  useLayoutEffect(measure, [total, rowHeight]);
  useEffect(() => {
    const element = box.current;
    if (!element) return undefined;
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    return () => observer.disconnect();
  }, [rowHeight]);
  const last = Math.min(total, view.last);
  useEffect(() => props.onRange(view.first, last), [view.first, last]);

  const rows: ComponentChildren[] = [];
  for (let index = view.first; index < last; index += 1) {
    const item = props.row(index);
    const style = { transform: `translateY(${index * rowHeight}px)`, height: `${rowHeight}px` };
    rows.push(
      <div key={item === undefined ? `at-${index}` : props.keyOf(item)} class={`vrow ${item === undefined ? "unknown" : ""}`} style={style} role="row" aria-rowindex={index + 2}>
        {item === undefined ? <span role="cell">…</span> : props.render(item, index)}
      </div>,
    );
  }
  return (
    <div class="vlist" role="table" aria-label={props.label} aria-rowcount={total + 1}>
      {props.head}
      <div ref={box} class="vbox" onScroll={measure} tabIndex={0} role="rowgroup" aria-label={props.label}>
        <div class="vspace" style={{ height: `${Math.max(1, total * rowHeight)}px` }} role="presentation">
          {rows}
        </div>
      </div>
    </div>
  );
}
