// Types of the HTTP API, from the specification that the server's tests keep.
// `paths` and `components` only: the page calls by path.

import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import openapiTS, { astToString } from "openapi-typescript";

const tests = fileURLToPath(new URL("../../crates/server/tests", import.meta.url));
const snapshot = readdirSync(tests, { recursive: true }).find((name) => name.endsWith("openapi.snap"));
if (!snapshot) throw new Error(`no snapshot of the specification below ${tests}`);
const text = readFileSync(join(tests, snapshot), "utf8");
// A snapshot is a head between two lines of dashes, then the document.
const spec = JSON.parse(text.slice(text.indexOf("\n---\n", 4) + 5));
for (const item of Object.values(spec.paths)) {
  for (const operation of Object.values(item)) delete operation.operationId;
}
const types = await openapiTS(spec, { silent: true });
writeFileSync(new URL("../src/api/schema.d.ts", import.meta.url), astToString(types));
