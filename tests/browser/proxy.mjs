// A TCP proxy between the browser and the server, which can cut and hold back connections.

import { connect, createServer } from "node:net";

export async function proxy(port) {
  const open = new Set();
  let refusing = false;
  const server = createServer((inner) => {
    if (refusing) return inner.destroy();
    const outer = connect(port, "127.0.0.1");
    for (const [from, to] of [
      [inner, outer],
      [outer, inner],
    ]) {
      open.add(from);
      from.on("error", () => {});
      from.on("close", () => {
        open.delete(from);
        to.destroy();
      });
      from.pipe(to);
    }
    return undefined;
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    port: server.address().port,
    /** Cuts every connection; new ones are refused until `mend`. */
    cut() {
      refusing = true;
      for (const socket of open) socket.destroy();
    },
    mend() {
      refusing = false;
    },
    close() {
      for (const socket of open) socket.destroy();
      server.close();
    },
  };
}
