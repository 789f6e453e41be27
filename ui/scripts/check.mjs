// Holds ui/dist, which is committed, against what the source gives now.

import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { brotliDecompressSync, gunzipSync } from "node:zlib";

/** How much the page may be in all, compressed. */
const MOST_BYTES = 200_000;

const root = fileURLToPath(new URL("..", import.meta.url));
const fresh = mkdtempSync(join(tmpdir(), "leasehold-ui-"));
const faults = [];
try {
  execFileSync("npx", ["--no-install", "vite", "build", "--logLevel", "warn", "--outDir", fresh, "--emptyOutDir"], { cwd: root, stdio: "inherit" });
  const files = (folder) =>
    readdirSync(folder, { recursive: true, withFileTypes: true })
      .filter((entry) => entry.isFile())
      .map((entry) => join(entry.parentPath, entry.name).slice(folder.length).replace(/^\//, ""))
      .sort();
  const dist = join(root, "dist");
  const [kept, built] = [files(dist), files(fresh)];
  for (const file of built) if (!kept.includes(file)) faults.push(`dist/${file} is missing`);
  for (const file of kept) if (!built.includes(file)) faults.push(`dist/${file} is left over`);
  for (const file of kept.filter((it) => built.includes(it))) {
    // Compressors differ between versions; what comes out of them must not.
    const read = (folder) => {
      const bytes = readFileSync(join(folder, file));
      return file.endsWith(".br") ? brotliDecompressSync(bytes) : file.endsWith(".gz") ? gunzipSync(bytes) : bytes;
    };
    if (!read(dist).equals(read(fresh))) faults.push(`dist/${file} differs`);
  }
  const bytes = kept.filter((file) => file.endsWith(".gz")).reduce((sum, file) => sum + readFileSync(join(dist, file)).length, 0);
  if (bytes > MOST_BYTES) faults.push(`the page is ${bytes} bytes compressed, at most ${MOST_BYTES} are allowed`);
  if (faults.length === 0) console.log(`ui/dist matches its source; ${bytes} bytes compressed`);
} finally {
  rmSync(fresh, { recursive: true, force: true });
}
if (faults.length > 0) {
  console.error(`${faults.join("\n")}\nhint: build the page again with: make ui`);
  process.exit(1);
}
