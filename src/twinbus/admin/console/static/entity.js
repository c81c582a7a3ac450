// One entity: its messages by state, its sessions, rules and settings.

import * as api from "./api.js";
import { composer } from "./compose.js";
import { bytes, confirm, dialog, empty, every, field, fill, h, number, short, tabs, toast }
  from "./dom.js";
import { entityAddress, learnEntities } from "./entities.js";
import { MessagesPanel } from "./messages.js";
import { rulesPanel } from "./rules.js";
import { sessionsPanel } from "./sessions.js";

const POLL_MS = 2000;
const MESSAGE_TABS = [
  { id: "active", label: "Active", stream: "main", state: "active" },
  { id: "locked", label: "Locked", stream: "main", state: "locked" },
  { id: "scheduled", label: "Scheduled", stream: "main", state: "scheduled" },
  { id: "deferred", label: "Deferred", stream: "main", state: "deferred" },
  { id: "reserved", label: "Reserved", stream: "main", state: "reserved" },
  { id: "dead-letter", label: "Dead-letter", stream: "dead-letter", state: "" },
  { id: "transfer", label: "Transfer dead-letter", stream: "transfer", state: "" },
];

// What a tab without anything to refresh gives.
const NO_PANEL = { refresh: () => {}, close: () => {}, keys: {} };

const total = (counts) => Object.values(counts).reduce((sum, count) => sum + count, 0);

function tabsOf(found) {
  const counts = {
    active: found.active, locked: found.locked, scheduled: found.scheduled,
    deferred: found.deferred, reserved: found.reserved, "dead-letter": found.dead_letter,
    transfer: found.transfer_dead_letter,
  };
  // Few entities have messages set aside for a reader in bulk: a tab only where there are some.
  const messages = found.kind === "topic" ? MESSAGE_TABS.filter((tab) => tab.id === "scheduled")
    : MESSAGE_TABS.filter((tab) => tab.id !== "reserved" || found.reserved);
  const items = messages.map((tab) => ({
    ...tab, count: counts[tab.id], mark: tab.stream !== "main" && counts[tab.id] > 0,
  }));
  if (found.kind === "topic") {
    items.unshift({ id: "subscriptions", label: "Subscriptions", count: found.subscriptions.length });
  }
  if (found.sessions && found.kind !== "topic") items.push({ id: "sessions", label: "Sessions" });
  if (found.kind === "subscription") {
    items.push({ id: "rules", label: "Rules", count: found.rules.length });
  }
  items.push({ id: "settings", label: "Settings" });
  return items;
}

export async function entityPage({ main, path, parameters, keys }) {
  const found = await api.get("entity", { entity: path });
  // Somebody may have gone on to another page meanwhile, whose address must stay.
  if (!main.isConnected) return () => {};
  learnEntities().catch(() => {});
  const page = new EntityPage(main, found, keys);
  page.choose(parameters.get("stream") || parameters.get("tab"));
  const stop = every(POLL_MS, () => page.refresh());
  return () => { stop(); page.panel.close(); };
}

class EntityPage {
  constructor(main, found, keys) {
    this.found = found;
    this.keys = keys;
    this.panel = NO_PANEL;
    this.chosen = "";
    this.bar = h("div");
    this.content = h("div", { role: "tabpanel", id: "panel" });
    this.facts = h("p", { class: "summary" });
    fill(main,
      h("nav", { class: "crumbs", "aria-label": "Where you are" },
        h("a", { href: "#/entities" }, "Entities"), crumbs(found)),
      h("div", { class: "heading" },
        h("h1", {}, h("span", { class: `kind ${found.kind}` }, found.kind[0].toUpperCase()),
          found.path),
        this.facts,
        this.maySend() ? h("button", { type: "button", class: "primary",
          onclick: () => this.send() }, "Send message") : null),
      this.bar, this.content);
  }

  may(right) { return this.found.rights.includes(right); }

  maySend() { return this.may("Send") && this.found.kind !== "subscription"; }

  // Shows a tab; without a valid choice the first that has something in it.
  choose(wanted) {
    const items = tabsOf(this.found);
    const tab = items.find((item) => item.id === wanted)
      || items.find((item) => item.count > 0) || items[0];
    this.panel.close();
    this.chosen = tab.id;
    this.drawTabs();
    this.content.setAttribute("aria-labelledby", `tab-${tab.id}`);
    fill(this.content);
    this.panel = this.makePanel(tab);
    this.keys({
      s: () => { if (this.maySend()) this.send(); },
      ".": () => { this.refresh(); this.panel.refresh(); },
      ...this.panel.keys,
    });
    const name = tab.stream && tab.stream !== "main" ? "stream" : "tab";
    history.replaceState(null, "", entityAddress(this.found.path, `?${name}=${tab.id}`));
  }

  makePanel(tab) {
    const refresh = () => this.refresh();
    if (tab.stream) {
      const outer = { send: (start) => this.send(start), refresh };
      return new MessagesPanel(this.content, this.found, tab, outer);
    }
    if (tab.id === "sessions") return sessionsPanel(this.content, this.found);
    if (tab.id === "rules") return rulesPanel(this.content, this.found, refresh);
    if (tab.id === "subscriptions") return subscriptionsPanel(this.content, this.found);
    return settingsPanel(this.content, this.found, this.may("Manage"));
  }

  // Tabs are drawn anew only when there are others: they keep focus and place while counts move.
  drawTabs() {
    const items = tabsOf(this.found);
    const shape = `${this.chosen} ${items.map((item) => item.id)}`;
    if (this.bar.dataset.shape !== shape) {
      const focused = this.bar.contains(document.activeElement);
      this.bar.dataset.shape = shape;
      fill(this.bar, tabs("What to look at", items, this.chosen, (id) => this.choose(id)));
      const selected = this.bar.querySelector("[aria-selected=true]");
      selected?.scrollIntoView({ inline: "nearest", block: "nearest" });
      if (focused) selected?.focus();
    }
    for (const item of items.filter((each) => each.count !== undefined)) {
      const tab = this.bar.querySelector(`#tab-${item.id}`);
      tab.classList.toggle("marked", Boolean(item.mark));
      tab.querySelector(".count").textContent = short(item.count);
    }
    const { size, receivers, senders, status } = this.found;
    fill(this.facts,
      h("span", {}, h("b", {}, bytes(size))),
      h("span", {}, h("b", {}, number(receivers)), " receivers"),
      h("span", {}, h("b", {}, number(senders)), " senders"),
      status === "Active" ? null : h("span", { class: "status" }, status));
  }

  async refresh() {
    try {
      this.found = await api.get("entity", { entity: this.found.path });
      this.drawTabs();
    } catch (error) {
      if (error.status === 404) { toast(error.message, "error"); location.hash = "#/entities"; }
    }
  }

  send(start = {}) {
    const writer = composer(start);
    const count = h("input", { id: "message-count", type: "number", min: "1", max: "1000",
      value: "1" });
    dialog(`Send to ${this.found.path}`, [writer.element, field("How many", count)], {
      action: "Send", wide: true,
      submit: async () => {
        const message = writer.read();
        const messages = Array.from({ length: Number(count.value) || 1 }, () => message);
        const answer = await api.post("send", { entity: this.found.path, messages });
        toast(answer.scheduled.length
          ? `Scheduled as ${answer.scheduled.map((seq) => `#${seq}`).slice(0, 5).join(", ")}.`
          : `${number(messages.length)} sent.`);
        await this.refresh();
        this.panel.refresh();
      },
    });
  }
}

function crumbs(found) {
  if (found.kind !== "subscription") return [" / ", found.path];
  const [topic, name] = found.path.split("/Subscriptions/");
  return [" / ", h("a", { href: entityAddress(topic) }, topic), " / ", name];
}

function subscriptionsPanel(content, found) {
  fill(content, found.subscriptions.length
    ? h("ul", { class: "links" }, found.subscriptions.map((path) => h("li", {},
      h("a", { href: entityAddress(path) }, path.split("/Subscriptions/")[1]))))
    : empty("Nobody has subscribed yet: what is sent to this topic is dropped."));
  return NO_PANEL;
}

// Durations are written as in Service Bus: PT30S, P14D, or unlimited.
const UNLIMITED_MS = 922337203685477;
const UNITS = [["D", 86_400_000], ["H", 3_600_000], ["M", 60_000], ["S", 1000]];

function writeDuration(milliseconds) {
  if (milliseconds >= UNLIMITED_MS) return "unlimited";
  let rest = milliseconds;
  let text = "P";
  for (const [letter, unit] of UNITS) {
    const count = letter === "S" ? rest / unit : Math.floor(rest / unit);
    if (letter === "H" && rest) text += "T";
    if (count) text += count + letter;
    rest -= count * unit;
  }
  return text === "P" ? "PT0S" : text;
}

function readDuration(text) {
  if (text.trim() === "unlimited") return UNLIMITED_MS;
  const parts = /^P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:([\d.]+)S)?)?$/.exec(text.trim());
  if (!parts) throw new Error(`'${text}' is no duration: write it like PT30S, P14D or unlimited.`);
  return Math.round(UNITS.reduce((sum, [, unit], i) => sum + (Number(parts[i + 1]) || 0) * unit, 0));
}

// The control of one setting, with how to read it back.
function settingControl(name, value, disabled) {
  const id = `set-${name}`;
  if (typeof value === "boolean") {
    const control = h("input", { type: "checkbox", checked: value, disabled, id });
    return { control, read: () => control.checked };
  }
  if (name === "status") {
    const control = h("select", { id, disabled }, ["Active", "Disabled", "SendDisabled",
      "ReceiveDisabled"].map((each) => h("option", { selected: each === value }, each)));
    return { control, read: () => control.value };
  }
  const lasting = name.endsWith("_ms");
  const control = h("input", { id, disabled, value: lasting ? writeDuration(value) : value ?? "",
    type: typeof value === "number" && !lasting ? "number" : "text" });
  if (lasting) return { control, read: () => readDuration(control.value) };
  return { control, read: () => (typeof value === "number" ? Number(control.value)
    : control.value || null) };
}

function settingsPanel(content, found, mayManage) {
  const fixed = new Set(["name", "topic", "created_ms", "updated_ms"]);
  const controls = new Map();
  const rows = Object.entries(found.settings).filter(([name]) => !fixed.has(name))
    .map(([name, value]) => {
      const made = settingControl(name, value, !mayManage);
      controls.set(name, { ...made, value });
      const label = name.replace(/_ms$/, "").replaceAll("_", " ");
      return h("tr", {}, h("th", { scope: "row" }, h("label", { for: `set-${name}` }, label)),
        h("td", {}, made.control));
    });
  async function save() {
    try {
      const settings = {};
      for (const [name, { read, value }] of controls) {
        if (read() !== value) settings[name] = read();
      }
      await api.post("update-entity", { entity: found.path, settings });
      for (const [name, made] of controls) {
        if (name in settings) made.value = settings[name];
      }
      toast("Saved.");
    } catch (error) {
      toast(error.message, "error");
    }
  }
  function remove() {
    const held = total({ a: found.active, b: found.locked, c: found.scheduled, d: found.deferred,
      e: found.dead_letter, f: found.transfer_dead_letter });
    confirm(`Delete ${found.path}?`, `It goes for good, with ${number(held)} messages in it.`,
      "Delete", async () => {
        await api.post("delete-entity", { entity: found.path });
        location.hash = "#/entities";
      });
  }
  fill(content, h("table", { class: "properties settings" },
    h("caption", { class: "hidden" }, "Settings"), h("tbody", {}, rows,
      found.policies.map((policy) => h("tr", {}, h("th", { scope: "row" }, "policy"),
        h("td", {}, `${policy.name}: ${policy.rights.join(", ")}`))))),
  mayManage ? h("div", { class: "buttons" },
    h("button", { type: "button", class: "primary", onclick: save }, "Save"),
    h("button", { type: "button", class: "danger", onclick: remove }, "Delete entity")) : null);
  return NO_PANEL;
}
