// Who has what, and who should: targets down, holders across.

import { useState } from "preact/hooks";
import { href } from "../lib/router";
import { count } from "../lib/time";
import { Badge } from "./parts";

export interface MatrixRow {
  name: string;
  key: string;
  owner: string | undefined;
  preferred: string | undefined;
  state: "owned" | "uncertain" | "unowned" | "paused";
  why?: string;
}

/** More columns than this say nothing any more; rows are cut and counted. */
const COLUMNS = 24;
const ROWS = 150;

const rank: Record<MatrixRow["state"], number> = { unowned: 0, uncertain: 1, paused: 3, owned: 2 };

export function Matrix({ label, columns, rows }: { label: string; columns: { id: string; name: string }[]; rows: MatrixRow[] }) {
  const [filter, setFilter] = useState("");
  const shown = columns.slice(0, COLUMNS);
  const names = new Map(columns.map((column) => [column.id, column.name]));
  const moved = (row: MatrixRow) => row.preferred !== undefined && row.owner !== undefined && row.owner !== row.preferred;
  const found = rows
    .filter((row) => row.name.includes(filter) || row.owner?.includes(filter))
    .sort((a, b) => rank[a.state] - rank[b.state] || Number(moved(b)) - Number(moved(a)) || a.name.localeCompare(b.name, "en", { numeric: true }));
  const cut = found.slice(0, ROWS);
  return (
    <div class="matrix-box">
      <div class="filters">
        <input class="search" type="search" placeholder="Find a target" aria-label={`Find in ${label}`} value={filter} onInput={(event) => setFilter(event.currentTarget.value)} />
        <p class="note grow">
          {count(cut.length)} of {count(rows.length)}
          {columns.length > COLUMNS ? `, ${COLUMNS} of ${count(columns.length)} holders` : ""}
        </p>
        <p class="legend" aria-hidden="true">
          <span>
            <i class="dot own" /> has it
          </span>
          <span>
            <i class="dot late" /> renewal overdue
          </span>
          <span>
            <i class="dot want" /> should have it
          </span>
        </p>
      </div>
      <div class="scroll" tabIndex={0} role="region" aria-label={label}>
        <table class="matrix">
          <thead>
            <tr>
              <th scope="col">Target</th>
              <th scope="col">Owner</th>
              {shown.map((column) => (
                <th scope="col" key={column.id} class="matrix-column" title={column.name}>
                  <span>{column.name}</span>
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {cut.map((row) => (
              <tr key={row.key} class={row.state === "unowned" ? "unowned" : ""}>
                <th scope="row">
                  <a class="mono key" href={href("lease", row.key)}>
                    {row.name}
                  </a>
                </th>
                <td class="matrix-owner">
                  {row.state === "unowned" ? (
                    <Badge tone="bad">Unowned</Badge>
                  ) : row.state === "paused" ? (
                    <Badge tone="quiet">{row.why ?? "Paused"}</Badge>
                  ) : (
                    <span class="ellipsis" title={row.owner}>
                      {names.get(row.owner ?? "") ?? row.owner}
                    </span>
                  )}
                </td>
                {shown.map((column) => {
                  const own = row.owner === column.id;
                  const want = row.preferred === column.id;
                  const words = own ? (want ? "has it, as planned" : "has it") : want ? "should have it" : "";
                  return (
                    <td key={column.id} class="matrix-cell">
                      {(own || want) && (
                        <i class={`dot ${own ? (row.state === "uncertain" ? "late" : "own") : "want"}`} role="img" aria-label={`${column.name} ${words}`} title={`${column.name} ${words}`} />
                      )}
                    </td>
                  );
                })}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </div>
  );
}
