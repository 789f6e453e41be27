// Shows /api/openapi.json: every operation with its parameters, body, answers and a curl line.

const make = (tag, attributes = {}, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children.filter((child) => child !== undefined));
  return node;
};

const METHODS = ["get", "post", "put", "delete", "patch"];

const resolve = (api, schema) => {
  const name = schema?.$ref?.split("/").pop();
  return name ? [name, api.components.schemas[name]] : [undefined, schema];
};

/** A type in one line: `string`, `Lease[]`, `integer | null`. */
const typeOf = (schema) => {
  if (!schema) return "any";
  if (schema.$ref) return schema.$ref.split("/").pop();
  const any = schema.oneOf ?? schema.anyOf ?? schema.allOf;
  if (any) return [...new Set(any.map(typeOf))].join(" | ");
  if (schema.enum) return schema.enum.map((it) => JSON.stringify(it)).join(" | ");
  if (schema.type === "array") return `${typeOf(schema.items)}[]`;
  return [schema.type].flat().filter(Boolean).join(" | ") || "any";
};

/** Limits in a few words: `1..3600`, `1..64 characters`. */
const limits = (schema = {}) => {
  const span = (from, to, unit) => (from === undefined && to === undefined ? undefined : `${from ?? ""}..${to ?? ""}${unit}`);
  return [
    span(schema.minimum, schema.maximum, ""),
    span(schema.minLength, schema.maxLength, " characters"),
    span(schema.minItems, schema.maxItems, " items"),
    schema.pattern,
  ].filter(Boolean).join(", ");
};

const about = (schema, text = "") => [text, limits(schema)].filter(Boolean).join(" · ");

/** What a value looks like, without following the same name twice. */
const example = (api, schema, seen = []) => {
  const [name, found] = resolve(api, schema);
  if (!found || (name && seen.includes(name))) return name ?? null;
  const path = name ? [...seen, name] : seen;
  if (found.example !== undefined) return found.example;
  if (found.examples?.length) return found.examples[0];
  if (found.default !== undefined) return found.default;
  if (found.enum) return found.enum[0];
  const any = found.oneOf ?? found.anyOf;
  if (any) return example(api, any.find((it) => it.type !== "null") ?? any[0], path);
  if (found.properties) {
    const required = found.required ?? [];
    const shown = Object.entries(found.properties).filter(([key]) => !required.length || required.includes(key));
    return Object.fromEntries(shown.map(([key, value]) => [key, example(api, value, path)]));
  }
  const type = [found.type].flat()[0];
  if (type === "array") return [example(api, found.items, path)];
  return { string: "text", integer: 1, number: 1, boolean: true, object: {} }[type] ?? null;
};

const rows = (head, list) =>
  make("table", {},
    make("thead", {}, make("tr", {}, ...head.map((text) => make("th", { scope: "col" }, text)))),
    make("tbody", {}, ...list.map((cells) => make("tr", {}, ...cells.map((cell) => make("td", {}, cell))))));

const fields = (api, schema) => {
  const [, found] = resolve(api, schema);
  const required = found?.required ?? [];
  return Object.entries(found?.properties ?? {}).map(([name, value]) => [
    make("code", {}, required.includes(name) ? name : `${name}?`),
    make("code", {}, typeOf(value)),
    about(value, value.description ?? resolve(api, value)[1]?.description),
  ]);
};

const operation = (api, method, path, it) => {
  const id = it.operationId;
  const [media, content] = Object.entries(it.requestBody?.content ?? {})[0] ?? [];
  const body = content?.schema;
  const known = (name) => it.parameters?.find((one) => one.name === name)?.example;
  const filled = path.replace(/\{(\w+)\}/g, (whole, name) => known(name) ?? whole);
  const scopes = (it.security ?? []).flatMap((one) => Object.values(one).flat());
  const parts = [];
  if (it.description) parts.push(make("p", {}, it.description));
  if (scopes.length) parts.push(make("p", { class: "muted" }, `Scope: ${scopes.join(", ")}`));
  if (it.parameters?.length)
    parts.push(rows(["parameter", "in", "type", ""], it.parameters.map((one) => [
      make("code", {}, one.required ? one.name : `${one.name}?`), one.in, make("code", {}, typeOf(one.schema)), about(one.schema, one.description),
    ])));
  if (body) parts.push(rows(["body", "type", ""], fields(api, body)));
  parts.push(rows(["answer", "", ""], Object.entries(it.responses).map(([status, one]) => [
    make("code", {}, status), one.description, make("code", {}, typeOf(Object.values(one.content ?? {})[0]?.schema ?? { type: "" }).replace(/^any$/, "")),
  ])));
  const line = [`curl -X ${method.toUpperCase()} "${location.origin}${filled}"`];
  if (scopes.length) line.push('  -H "Authorization: Bearer $LEASEHOLD_API_TOKEN"');
  if (media === "application/json")
    line.push('  -H "Content-Type: application/json"', `  -d '${JSON.stringify(content.example ?? example(api, body))}'`);
  else if (media) line.push(`  -H "Content-Type: ${media}"`, "  --data-binary @FILE");
  parts.push(make("pre", { tabindex: "0" }, line.join(" \\\n")));
  return make("details", { id, "data-text": `${method} ${path} ${id} ${it.summary} ${Object.keys(it.responses).join(" ")}`.toLowerCase() },
    make("summary", {}, make("span", { class: "method" }, method.toUpperCase()), make("code", {}, path), " ", make("span", { class: "muted" }, it.summary ?? "")),
    make("div", { class: "body" }, ...parts));
};

const show = (api) => {
  const groups = new Map();
  for (const [path, item] of Object.entries(api.paths))
    for (const method of METHODS)
      if (item[method]) {
        const tag = item[method].tags?.[0] ?? "other";
        groups.set(tag, [...(groups.get(tag) ?? []), operation(api, method, path, item[method])]);
      }
  document.getElementById("about").textContent = `${api.info.description} Version ${api.info.version}.`;
  document.getElementById("operations").replaceChildren(
    ...[...groups].map(([tag, list]) => make("section", {}, make("h2", {}, tag), ...list)));
};

const find = (text) => {
  for (const section of document.querySelectorAll("main section")) {
    let shown = 0;
    for (const one of section.querySelectorAll("details")) {
      one.hidden = !text.split(/\s+/).every((word) => one.dataset.text.includes(word));
      shown += one.hidden ? 0 : 1;
    }
    section.hidden = shown === 0;
  }
};

/** Opens the operation that the address names: a link per operation can be shared. */
const follow = () => {
  const one = document.getElementById(location.hash.slice(1));
  if (one instanceof HTMLDetailsElement) {
    one.open = true;
    one.scrollIntoView();
  }
};

try {
  const answer = await fetch("/api/openapi.json", { signal: AbortSignal.timeout(10_000) });
  show(await answer.json());
  document.getElementById("find").addEventListener("input", (event) => find(event.target.value.toLowerCase().trim()));
  document.addEventListener("toggle", (event) => event.target.open && history.replaceState(null, "", `#${event.target.id}`), true);
  addEventListener("hashchange", follow);
  follow();
} catch (error) {
  document.getElementById("operations").textContent = `The specification could not be loaded: ${error.message}`;
}
