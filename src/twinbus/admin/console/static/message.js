// One message: its body as text, JSON, XML or hex; its properties; its trace.

import { address } from "./api.js";
import { bytes, duration, fill, h, moment, number, tabs } from "./dom.js";

const HEX_BYTES_MAX = 64 * 1024;
const SHOWN_APART = new Set(["body", "application_properties", "annotations",
  "delivery_annotations", "footer"]);

export function bodyBytes(encoded) {
  return Uint8Array.from(atob(encoded), (character) => character.charCodeAt(0));
}

export function asText(data) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(data);
  } catch {
    return null;
  }
}

// Indents JSON without changing a character of its values: parsing would round long numbers.
export function indentJson(text) {
  JSON.parse(text);
  let depth = 0;
  let quoted = false;
  let out = "";
  const line = () => `\n${"  ".repeat(depth)}`;
  for (let at = 0; at < text.length; at += 1) {
    const c = text[at];
    if (quoted) {
      out += c;
      if (c === "\\") { at += 1; out += text[at]; } else if (c === '"') quoted = false;
    } else if (c === '"') { quoted = true; out += c; }
    else if (/\s/.test(c)) continue;
    else if (c === "{" || c === "[") {
      const close = /^\s*[}\]]/.exec(text.slice(at + 1, at + 200));
      if (close) { out += c + close[0].trim(); at += close[0].length; }
      else { depth += 1; out += c + line(); }
    } else if (c === "}" || c === "]") { depth -= 1; out += line() + c; }
    else if (c === ",") out += c + line();
    else out += c === ":" ? ": " : c;
  }
  return out;
}

export function indentXml(text) {
  const parsed = new DOMParser().parseFromString(text, "application/xml");
  if (parsed.querySelector("parsererror")) throw new Error("This is no XML.");
  let depth = 0;
  const parts = text.replace(/>\s+</g, "><").split(/(?=<)|(?<=>)/).filter(Boolean);
  const lines = [];
  for (const part of parts) {
    if (part.startsWith("</")) {
      depth -= 1;
      const last = lines.at(-1);
      // An element that holds nothing but a text stays on one line.
      if (last?.depth === depth && last.open) { last.text += part; last.open = false; continue; }
      lines.push({ depth, text: part });
    } else if (part.startsWith("<")) {
      const single = part.endsWith("/>") || part.startsWith("<?") || part.startsWith("<!");
      lines.push({ depth, text: part, open: !single });
      if (!single) depth += 1;
    } else if (lines.at(-1)?.open) lines.at(-1).text += part;
    else lines.push({ depth, text: part });
  }
  return lines.map((line) => "  ".repeat(line.depth) + line.text).join("\n");
}

export function hexDump(data) {
  const lines = [];
  for (let at = 0; at < Math.min(data.length, HEX_BYTES_MAX); at += 16) {
    const row = [...data.slice(at, at + 16)];
    const codes = row.map((byte) => byte.toString(16).padStart(2, "0"));
    const left = codes.slice(0, 8).join(" ").padEnd(23);
    const right = codes.slice(8).join(" ").padEnd(23);
    const plain = row.map((byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : "·"));
    lines.push(`${at.toString(16).padStart(8, "0")}  ${left}  ${right}  ${plain.join("")}`);
  }
  if (data.length > HEX_BYTES_MAX) lines.push(`… ${number(data.length - HEX_BYTES_MAX)} more bytes`);
  return lines.join("\n");
}

const VIEWS = {
  json: (data) => indentJson(asText(data) ?? "?"),
  xml: (data) => indentXml(asText(data) ?? "?"),
  text: (data) => asText(data) ?? "(This body is no text: look at it as hex.)",
  hex: hexDump,
};

export function bestView(data) {
  const text = asText(data);
  if (text === null) return "hex";
  const start = text.trimStart()[0];
  for (const [view, first] of [["json", "{["], ["xml", "<"]]) {
    if (start && first.includes(start)) {
      try { VIEWS[view](data); return view; } catch { /* it only looked like it */ }
    }
  }
  return "text";
}

export function bodyView(shown, place) {
  const data = bodyBytes(shown.body);
  const pre = h("pre", { class: "body", tabindex: "0", "aria-label": "Body" });
  const choice = h("div");
  function show(view) {
    const items = Object.keys(VIEWS).map((id) => ({ id, label: id.toUpperCase() }));
    fill(choice, tabs("How to show the body", items, view, show));
    try {
      pre.textContent = VIEWS[view](data);
    } catch {
      pre.textContent = `(This body is no ${view.toUpperCase()}.)\n\n${VIEWS.text(data)}`;
    }
    pre.dataset.view = view;
  }
  show(bestView(data));
  const cut = shown.body_size > data.length
    ? h("p", { class: "note" }, `The first ${bytes(data.length)} of ${bytes(shown.body_size)}.`)
    : null;
  return h("section", { "aria-label": "Body" }, h("div", { class: "viewbar" }, choice,
    h("a", { href: address("body", place), download: true }, `Download ${bytes(shown.body_size)}`)),
  cut, pre);
}

function valueText(value) {
  if (value !== null && typeof value === "object") {
    const entries = Object.entries(value);
    if (entries.length === 1 && !Array.isArray(value)) {
      return [typeof entries[0][1] === "object" ? JSON.stringify(entries[0][1])
        : String(entries[0][1]), entries[0][0]];
    }
    return [JSON.stringify(value), ""];
  }
  const kind = { string: "string", boolean: "boolean",
    number: Number.isInteger(value) ? "long" : "double" }[typeof value] || "null";
  return [String(value), kind];
}

function properties(title, values) {
  const entries = Array.isArray(values) ? values : Object.entries(values || {});
  if (!entries.length) return null;
  return h("section", {}, h("h3", {}, title), h("table", { class: "properties" },
    h("caption", { class: "hidden" }, title),
    h("tbody", {}, entries.map(([name, value]) => {
      const [text, kind] = valueText(value);
      return h("tr", {}, h("th", { scope: "row" }, typeof name === "object"
        ? JSON.stringify(name) : name), h("td", {}, text), h("td", { class: "type" }, kind));
    }))));
}

function traceView(trace) {
  const names = Object.keys(trace);
  if (!names.length) return null;
  const parent = trace.traceparent || trace["Diagnostic-Id"] || "";
  const parts = /^[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})$/.exec(parent);
  return h("section", { class: "trace" }, h("h3", {}, "Trace"),
    h("table", { class: "properties" }, h("tbody", {},
      parts ? [
        h("tr", {}, h("th", { scope: "row" }, "trace id"), h("td", { class: "mono" }, parts[1])),
        h("tr", {}, h("th", { scope: "row" }, "parent span"), h("td", { class: "mono" }, parts[2])),
        h("tr", {}, h("th", { scope: "row" }, "sampled"),
          h("td", {}, parseInt(parts[3], 16) & 1 ? "yes" : "no")),
      ] : null,
      names.map((name) => h("tr", {}, h("th", { scope: "row" }, name),
        h("td", { class: "mono" }, trace[name]))))));
}

export function messageView(shown, place) {
  const message = shown.message || {};
  const own = message.application_properties || {};
  const plain = Object.fromEntries(Object.entries(message).filter(([k]) => !SHOWN_APART.has(k)));
  const facts = [
    ["State", shown.state],
    ["Enqueued", [moment(shown.enqueued), ` (${duration(shown.time - shown.enqueued)} ago)`]],
    shown.due ? ["Due", moment(shown.due)] : null,
    shown.locked_until ? ["Locked until", moment(shown.locked_until)] : null,
    shown.expires ? ["Expires", moment(shown.expires)] : null,
    ["Deliveries", shown.deliveries], ["Size", bytes(shown.size)],
    shown.session !== null ? ["Session", shown.session] : null,
  ].filter(Boolean);
  return h("div", { class: "message" },
    own.DeadLetterReason ? h("div", { class: "reason" }, h("strong", {}, own.DeadLetterReason),
      h("div", {}, own.DeadLetterErrorDescription || "")) : null,
    h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name),
      h("dd", {}, value)))),
    shown.unreadable ? h("p", { class: "failure" },
      `Parts of this message cannot be read: ${shown.unreadable}`) : null,
    bodyView(shown, place), traceView(shown.trace),
    properties("Application properties", own), properties("Properties", plain),
    properties("Annotations", message.annotations),
    properties("Delivery annotations", message.delivery_annotations),
    properties("Footer", message.footer));
}
