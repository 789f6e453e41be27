// Calls of the server's interface. The login is a cookie that scripts cannot read.

/** How far this machine's clock is ahead of the server's, in ms. */
let skew = 0;

/** Milliseconds until a moment that the server named. */
export const until = (time) => Date.parse(time) - (Date.now() - skew);

/** A request; answers with the status and the JSON, and throws only when there was no answer. */
export async function call(method, path, body) {
  const request = { method, headers: {} };
  if (body !== undefined) {
    request.headers["content-type"] = "application/json";
    request.body = JSON.stringify(body);
  }
  const answer = await fetch(path, request);
  const date = Date.parse(answer.headers.get("date"));
  // The header is cut to whole seconds: half of one is the best guess.
  if (!Number.isNaN(date)) skew = Date.now() - (date + 500);
  const text = await answer.text();
  let json = null;
  try {
    json = text ? JSON.parse(text) : null;
  } catch {
    // Not JSON: the status tells enough.
  }
  return { status: answer.status, ok: answer.ok, json };
}

/** What went wrong, in words for people. */
export const words = ({ status, json }) => json?.detail ?? `the server answered ${status}`;
