// All entities with live counts and rates. Only rows that changed come over the wire, and only
// rows that can be seen are drawn, so that thousands of entities cost little.

import * as api from "./api.js";
import { bytes, dialog, empty, every, field, fill, h, number, rate, short } from "./dom.js";

const POLL_MS = 2000;
const DRAWN_STEP = 150;
const GROWTH_MS = 60_000;
const COLUMNS = [
  { id: "path", label: "Entity" }, { id: "active", label: "Active" },
  { id: "locked", label: "Locked" }, { id: "scheduled", label: "Scheduled" },
  { id: "deferred", label: "Deferred" }, { id: "dead_letter", label: "Dead-letter" },
  { id: "transfer_dead_letter", label: "Transfer DL" }, { id: "in_rate", label: "In" },
  { id: "out_rate", label: "Out" }, { id: "size", label: "Size" },
];
const COUNTS = ["active", "locked", "scheduled", "deferred"];
// The list is sorted with every look: one collator for all comparisons.
const byName = new Intl.Collator();

export const entityAddress = (path, query = "") => `#/entity/${encodeURIComponent(path)}${query}`;

// What the console remembers between pages: rates need two looks.
const known = new Map();
let version = 0;
let lookedAt = 0;

async function look() {
  const changes = await api.get("entities", { since: version });
  const seconds = (changes.time - lookedAt) / 1000;
  if (changes.whole) {
    const present = new Set(changes.rows.map((row) => row.path));
    for (const path of known.keys()) if (!present.has(path)) known.delete(path);
  }
  for (const path of changes.gone) known.delete(path);
  if (changes.version !== version) {
    for (const row of known.values()) { row.in_rate = 0; row.out_rate = 0; }
  }
  for (const row of changes.rows) {
    const old = known.get(row.path);
    const timed = old && !changes.whole && seconds > 0;
    row.in_rate = timed ? Math.max(0, row.in - old.in) / seconds : 0;
    row.out_rate = timed ? Math.max(0, row.out - old.out) / seconds : 0;
    row.grown_at = old && row.dead_letter > old.dead_letter ? changes.time : old?.grown_at || 0;
    known.set(row.path, row);
  }
  version = changes.version;
  lookedAt = changes.time;
  return changes;
}

// For pages that offer entities to choose from, opened before the list was seen.
export async function learnEntities() {
  if (!known.size) await look();
}

export function knownPaths(kinds) {
  return [...known.values()].filter((row) => kinds.includes(row.kind)).map((row) => row.path);
}

const dead = (row) => row.dead_letter + row.transfer_dead_letter;

export async function entitiesPage({ main, about, keys }) {
  const page = new EntitiesPage(main, about);
  keys({
    "/": () => page.filter.focus(),
    ".": () => { page.refresh(); },
    j: () => page.step(1),
    k: () => page.step(-1),
  });
  await page.refresh();
  page.draw();
  const stop = every(POLL_MS, () => page.refresh());
  return () => { stop(); page.seen.disconnect(); };
}

class EntitiesPage {
  constructor(main, about) {
    this.order = { column: "path", down: false };
    this.drawn = DRAWN_STEP;
    this.rows = new Map();
    this.filter = h("input", {
      type: "search", id: "filter", placeholder: "Filter by name  ( / )",
      "aria-label": "Filter entities by name",
      oninput: () => { this.drawn = DRAWN_STEP; this.draw(); },
    });
    this.deadOnly = h("input", { type: "checkbox", id: "only-dead", onchange: () => this.draw() });
    this.summary = h("div", { class: "summary", "aria-live": "off" });
    this.warning = h("p", { class: "failure", role: "alert" });
    this.body = h("tbody");
    this.head = h("tr", {}, COLUMNS.map((column) => h("th", { scope: "col",
      "data-id": column.id }, h("button", { type: "button", class: "sort",
      onclick: () => this.sortBy(column.id) }, column.label))));
    this.more = h("button", { type: "button", class: "more", onclick: () => this.showMore() });
    this.seen = new IntersectionObserver((entries) => {
      if (entries.some((entry) => entry.isIntersecting)) this.showMore();
    }, { rootMargin: "400px" });
    this.seen.observe(this.more);
    fill(main,
      h("div", { class: "heading" }, h("h1", {}, "Entities"), this.summary,
        about.rights.includes("Manage")
          ? h("button", { type: "button", onclick: createDialog }, "New entity") : null),
      this.warning,
      h("div", { class: "toolbar" }, this.filter,
        h("label", { class: "check" }, this.deadOnly, "with dead letters only")),
      h("div", { class: "scroll" }, h("table", { class: "entities lines" },
        h("caption", { class: "hidden" }, "Entities with what they hold"),
        h("thead", {}, this.head), this.body)), this.more);
  }

  sortBy(column, down = this.order.column === column ? !this.order.down : column !== "path") {
    this.order = { column, down };
    for (const cell of this.head.children) {
      const sorted = cell.dataset.id === column;
      if (sorted) cell.setAttribute("aria-sort", down ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    }
    this.draw();
  }

  showMore() {
    if (this.drawn >= this.chosen().length) return;
    this.drawn += DRAWN_STEP;
    this.draw();
  }

  chosen() {
    const wanted = this.filter.value.toLowerCase();
    const found = [...known.values()].filter((row) => (!wanted
      || row.path.toLowerCase().includes(wanted)) && (!this.deadOnly.checked || dead(row) > 0));
    const { column, down } = this.order;
    const sign = down ? -1 : 1;
    const compare = column === "path"
      ? (a, b) => sign * byName.compare(a.path, b.path)
      : (a, b) => sign * (a[column] - b[column]) || byName.compare(a.path, b.path);
    return found.sort(compare);
  }

  draw() {
    const all = this.chosen();
    const lines = all.slice(0, this.drawn).map((row) => {
      if (!this.rows.has(row.path)) this.rows.set(row.path, makeRow(row));
      paint(this.rows.get(row.path), row);
      return this.rows.get(row.path);
    });
    this.more.hidden = this.drawn >= all.length;
    this.more.textContent = `Show more (${number(all.length - lines.length)} left)`;
    if (!all.length) {
      lines.push(h("tr", {}, h("td", { colspan: COLUMNS.length }, empty(known.size
        ? "Nothing matches." : "There are no entities yet."))));
    }
    const drawn = this.body.children;
    if (lines.length !== drawn.length || lines.some((line, at) => line !== drawn[at])) {
      // A line that moves would lose the focus of whoever goes through the list by keyboard.
      const held = document.activeElement;
      this.body.replaceChildren(...lines);
      if (this.body.contains(held)) held.focus({ preventScroll: true });
    }
    this.summarize();
  }

  summarize() {
    const all = [...known.values()];
    const sum = (name) => all.reduce((total, row) => total + row[name], 0);
    const piles = all.filter((row) => dead(row) > 0);
    const pickOut = () => {
      this.deadOnly.checked = true;
      this.sortBy("dead_letter", true);
    };
    fill(this.summary,
      h("span", {}, h("b", {}, number(all.length)), " entities"),
      h("span", {}, h("b", {}, short(sum("active"))), " active"),
      h("span", {}, h("b", {}, rate(sum("in_rate")) || "0/s"), " in"),
      h("span", {}, h("b", {}, rate(sum("out_rate")) || "0/s"), " out"),
      piles.length ? h("button", { type: "button", class: "pile", onclick: pickOut },
        `☠ ${short(sum("dead_letter") + sum("transfer_dead_letter"))} dead letters in `
        + `${number(piles.length)} ${piles.length === 1 ? "entity" : "entities"}`)
        : h("span", { class: "fine" }, "no dead letters"));
  }

  async refresh() {
    try {
      const changes = await look();
      this.warning.textContent = changes.refusing || "";
      this.draw();
    } catch (error) {
      this.warning.textContent = error.message;
    }
  }

  step(by) {
    const links = [...this.body.querySelectorAll("a.entity")];
    const at = links.indexOf(document.activeElement);
    links[Math.max(0, Math.min(links.length - 1, at + by))]?.focus();
  }
}

function makeRow(row) {
  const nested = row.kind === "subscription";
  const [first, second] = row.path.split("/Subscriptions/");
  return h("tr", { "data-path": row.path },
    h("th", { scope: "row", class: nested ? "nested" : null },
      h("a", { class: "entity", href: entityAddress(row.path), title: row.path },
        h("span", { class: `kind ${row.kind}`, title: row.kind }, row.kind[0].toUpperCase()),
        nested ? [h("span", { class: "of" }, `${first} /`), second] : first),
      h("span", { class: "status" })),
    COUNTS.map((id) => h("td", { "data-id": id })),
    h("td", { "data-id": "dead_letter" },
      h("a", { href: entityAddress(row.path, "?stream=dead-letter"), class: "dead" })),
    h("td", { "data-id": "transfer_dead_letter" },
      h("a", { href: entityAddress(row.path, "?stream=transfer"), class: "dead" })),
    ["in_rate", "out_rate", "size"].map((id) => h("td", { "data-id": id })));
}

function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function paint(line, row) {
  const cell = (id) => line.querySelector(`[data-id="${id}"]`);
  for (const id of COUNTS) {
    put(cell(id), row[id] ? short(row[id]) : "");
    cell(id).title = number(row[id]);
  }
  for (const id of ["dead_letter", "transfer_dead_letter"]) {
    put(cell(id).firstChild, row[id] ? short(row[id]) : "");
    cell(id).firstChild.hidden = !row[id];
    cell(id).title = row[id] ? `${number(row[id])} dead letters` : "";
  }
  const growing = row.grown_at && lookedAt - row.grown_at < GROWTH_MS;
  line.classList.toggle("piled", dead(row) > 0);
  line.classList.toggle("growing", Boolean(growing));
  put(cell("in_rate"), rate(row.in_rate));
  put(cell("out_rate"), rate(row.out_rate));
  put(cell("size"), row.size ? bytes(row.size) : "");
  put(line.querySelector(".status"), row.status === "Active" ? "" : row.status);
}

function createDialog() {
  const kind = h("select", { id: "new-kind", onchange: () => adapt() },
    ["queue", "topic", "subscription"].map((each) => h("option", { value: each }, each)));
  const topic = h("input", { id: "new-topic", list: "topics", autocomplete: "off" });
  const name = h("input", { id: "new-name", required: true, autocomplete: "off" });
  const sessions = h("input", { type: "checkbox", id: "new-sessions" });
  const duplicates = h("input", { type: "checkbox", id: "new-duplicates" });
  const topicField = field("Topic", topic);
  const sessionField = h("label", { class: "check" }, sessions, "requires sessions");
  const duplicateField = h("label", { class: "check" }, duplicates, "detects duplicates");
  function adapt() {
    topicField.hidden = kind.value !== "subscription";
    sessionField.hidden = kind.value === "topic";
    duplicateField.hidden = kind.value === "subscription";
  }
  adapt();
  dialog("New entity", [
    field("Kind", kind), topicField, field("Name", name), sessionField, duplicateField,
    h("datalist", { id: "topics" }, knownPaths(["topic"]).map((path) => h("option", {
      value: path }))),
  ], {
    action: "Create",
    submit: async () => {
      const path = kind.value === "subscription"
        ? `${topic.value.trim()}/Subscriptions/${name.value.trim()}` : name.value.trim();
      const settings = {};
      if (kind.value !== "topic" && sessions.checked) settings.requires_session = true;
      if (kind.value !== "subscription" && duplicates.checked) {
        settings.requires_duplicate_detection = true;
      }
      await api.post("create-entity", { kind: kind.value, entity: path, settings });
      location.hash = entityAddress(path);
    },
  });
}
