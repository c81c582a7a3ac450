// The messages of one stream in one state: pages by sequence number, search, selection, and
// what can be done with what is selected.

import * as api from "./api.js";
import { deleteAll, editAndResubmit, resubmit, undefer } from "./actions.js";
import { fresh } from "./compose.js";
import { bytes, empty, every, fill, h, moment, number, toast } from "./dom.js";
import { messageView } from "./message.js";
import { drawTimeline } from "./timeline.js";

const PAGE = 50;
const POLL_MS = 2000;
const TIMELINE_MS = 15_000;
// A search goes on by itself until it has found so many; then it asks.
const FOUND_MIN = 50;
const COLUMNS = 9;

const button = (label, act, kind = null) => h("button", { type: "button", class: kind,
  onclick: act }, label);

export class MessagesPanel {
  // `outer` can send a message and refresh the counts around the panel.
  constructor(content, entity, tab, outer) {
    this.entity = entity;
    this.tab = tab;
    this.outer = outer;
    this.dead = tab.stream !== "main";
    this.place = { entity: entity.path, stream: tab.stream, state: tab.state };
    this.selected = new Set();
    this.page = { messages: [], total: 0, first: 0, last: 0 };
    this.at = { from: 1, backwards: false };
    this.search = null;
    this.opened = 0;
    this.closed = false;
    this.timelineAt = 0;
    this.lay(content);
    this.refresh();
    this.stop = every(POLL_MS, async () => {
      if (!this.selected.size && !this.opened) await this.refresh();
    });
  }

  close() {
    this.closed = true;
    this.stop();
  }

  may(right) { return this.entity.rights.includes(right); }

  // --- drawing ------------------------------------------------------------------------

  lay(content) {
    this.text = h("input", {
      type: "search", id: "search-text", placeholder: "Search properties and body  ( / )",
      "aria-label": "Search properties and body",
    });
    this.sql = h("input", {
      type: "search", id: "search-sql", class: "mono", "aria-label": "SQL filter over properties",
      placeholder: "SQL filter: amount > 10 AND sys.Label = 'order'",
    });
    this.progress = h("span", { class: "progress", role: "status" });
    this.stopSearch = h("button", { type: "button", hidden: true,
      onclick: () => { this.search.stop = true; } }, "Stop");
    this.actions = h("div", { class: "actions" });
    this.timeline = h("div", { class: "timeline", hidden: true });
    this.all = h("input", { type: "checkbox", "aria-label": "Select all on this page",
      onchange: () => this.toggleAll() });
    this.body = h("tbody");
    this.pager = h("nav", { class: "pager", "aria-label": "Pages" });
    this.detail = h("aside", { class: "detail", hidden: true, "aria-label": "Message" });
    const extra = { scheduled: "Due", locked: "Locked until" }[this.tab.id]
      || (this.dead ? "Reason" : "Session");
    this.split = h("div", { class: "split" },
      h("div", { class: "list" }, h("div", { class: "scroll" },
        h("table", { class: "lines messages" },
          h("caption", { class: "hidden" }, `${this.tab.label} messages of ${this.entity.path}`),
          h("thead", {}, h("tr", {}, h("th", { scope: "col", class: "tick" }, this.all),
            ["#", "Enqueued", "Message id", "Subject", extra, "Size", "Tries", "Body"]
              .map((label) => h("th", { scope: "col" }, label)))), this.body)), this.pager),
      this.detail);
    const find = (event) => {
      event.preventDefault();
      this.find();
    };
    fill(content,
      h("div", { class: "toolrow" },
        h("form", { class: "toolbar", role: "search", onsubmit: find }, this.text, this.sql,
          h("button", { type: "submit" }, "Search"), this.stopSearch, this.progress),
        this.actions),
      this.timeline, this.split);
  }

  // One cell over all columns: there is nothing, or it cannot be shown.
  fillBody(content) {
    fill(this.body, h("tr", {}, h("td", { colspan: COLUMNS }, content)));
  }

  extraCell(line) {
    if (this.tab.id === "scheduled") return moment(line.due);
    if (this.tab.id === "locked") return moment(line.locked_until);
    return this.dead ? h("span", { class: "why" }, line.reason || "") : line.session ?? "";
  }

  makeLine(line) {
    const tick = h("input", { type: "checkbox", checked: this.selected.has(line.seq),
      "aria-label": `Select message ${line.seq}`,
      onclick: (event) => event.stopPropagation(),
      onchange: () => this.toggle(line.seq, tick.checked) });
    return h("tr", {
      tabindex: "0", "data-seq": line.seq, class: line.seq === this.opened ? "open" : null,
      onclick: () => this.open(line.seq),
      onkeydown: (event) => { if (event.key === "Enter") this.open(line.seq); },
    },
    h("td", { class: "tick" }, tick),
    h("td", { class: "mono" }, line.seq), h("td", {}, moment(line.enqueued)),
    h("td", { class: "mono clip" }, line.id ?? ""), h("td", { class: "clip" }, line.subject ?? ""),
    h("td", { class: "clip" }, this.extraCell(line)), h("td", {}, bytes(line.size)),
    h("td", {}, line.deliveries || ""),
    h("td", { class: "excerpt mono" }, line.traced ? h("span", { class: "traced",
      title: "carries a trace" }, "⌁ ") : null, line.excerpt));
  }

  draw() {
    const focus = this.body.contains(document.activeElement)
      ? document.activeElement.closest("tr")?.dataset.seq : null;
    const lines = this.page.messages;
    if (lines.length) fill(this.body, lines.map((line) => this.makeLine(line)));
    else {
      this.fillBody(empty(this.search ? "Nothing was found."
        : `No ${this.tab.label.toLowerCase()} messages.`));
    }
    this.all.checked = lines.length > 0 && lines.every((line) => this.selected.has(line.seq));
    if (focus) this.body.querySelector(`[data-seq="${focus}"]`)?.focus();
    if (this.search) this.drawFound();
    else this.drawPager();
    this.drawActions();
  }

  drawFound() {
    const { next } = this.search;
    fill(this.pager, h("span", {}, `${number(this.page.messages.length)} found`
      + (next ? `, looked up to #${number(next - 1)}` : " in the whole queue")),
    next ? button("Continue", () => this.more()) : null,
    button("Clear search", () => this.clear()));
  }

  drawPager() {
    const { messages: lines, total } = this.page;
    const turn = (label, name, act, disabled) => h("button", { type: "button", onclick: act,
      disabled, "aria-label": name }, label);
    const goTo = h("input", { type: "number", min: "1", id: "go-to", "aria-label":
      "Go to sequence number", placeholder: "go to #" });
    fill(this.pager,
      turn("«", "First page", () => this.first(), !this.hasPrevious()),
      turn("‹", "Previous page", () => this.previous(), !this.hasPrevious()),
      h("span", { class: "where" }, lines.length
        ? `#${number(lines[0].seq)} – #${number(lines.at(-1).seq)} of ${number(total)}`
        : `${number(total)}`),
      turn("›", "Next page", () => this.next(), !this.hasNext()),
      turn("»", "Last page", () => this.last(), !this.hasNext()),
      h("form", { onsubmit: (event) => {
        event.preventDefault();
        if (goTo.value) this.go({ from: Number(goTo.value), backwards: false });
      } }, goTo));
  }

  drawActions() {
    const count = this.selected.size;
    const bulk = { ...this.place, search: this.search, total: this.page.total,
      seqs: [...this.selected] };
    const done = () => this.changed();
    fill(this.actions,
      this.dead && this.may("Manage")
        ? button(count ? `Resubmit ${number(count)}` : "Resubmit all…",
          () => resubmit(bulk, done), "primary") : null,
      this.tab.id === "deferred" && this.may("Listen") && count
        ? button(`Make ${number(count)} active`, () => undefer(bulk, done)) : null,
      this.mayDelete() ? button(count ? `${this.verb()} ${number(count)}` : `${this.purge()}…`,
        () => deleteAll(bulk, count ? this.verb() : this.purge(), done), "danger") : null,
      count ? button("Select none", () => { this.selected.clear(); this.draw(); }, "quiet") : null);
  }

  verb() { return this.tab.id === "scheduled" ? "Cancel" : "Delete"; }

  purge() {
    if (this.search) return `${this.verb()} all found`;
    return this.tab.id === "scheduled" ? "Cancel all" : "Purge";
  }

  mayDelete() {
    if (["locked", "reserved"].includes(this.tab.id)) return false;
    if (!this.page.total && !this.selected.size) return false;
    return this.may(this.tab.id === "scheduled" ? "Send" : "Listen");
  }

  // Something was done to messages: what is shown may be gone.
  changed() {
    this.selected.clear();
    this.shut();
    this.outer.refresh();
    this.refresh();
  }

  // --- pages --------------------------------------------------------------------------

  hasPrevious() {
    return this.page.messages.length > 0 && this.page.messages[0].seq > this.page.first;
  }

  hasNext() {
    return this.page.messages.length > 0 && this.page.messages.at(-1).seq < this.page.last;
  }

  async go(where) {
    this.at = where;
    this.search = null;
    await this.refresh();
  }

  first() { return this.go({ from: 1, backwards: false }); }

  last() { return this.go({ from: Math.max(this.page.last, 1), backwards: true }); }

  next() { return this.go({ from: this.page.messages.at(-1).seq + 1, backwards: false }); }

  previous() { return this.go({ from: this.page.messages[0].seq - 1, backwards: true }); }

  async refresh() {
    if (this.search) return;
    try {
      const found = await api.get("messages", { ...this.place, ...this.at, count: PAGE });
      if (this.closed || this.search) return;
      const shape = (page) => page.messages.map((line) => `${line.seq}${line.state}`).join();
      const same = shape(this.page) === shape(found) && found.total === this.page.total
        && this.body.childElementCount > 0;
      this.page = found;
      if (!same) this.draw();
      const old = performance.now() - this.timelineAt > TIMELINE_MS;
      if (this.tab.id === "scheduled" && (!same || old)) {
        this.timelineAt = performance.now();
        await drawTimeline(this.timeline, this.entity.path);
      }
    } catch (error) {
      if (error.status !== 404) this.fillBody(h("p", { class: "failure" }, error.message));
    }
  }

  // --- search -------------------------------------------------------------------------

  async find() {
    const [text, sql] = [this.text.value.trim(), this.sql.value.trim()];
    if (!text && !sql) { this.clear(); return; }
    this.selected.clear();
    this.search = { text, sql, next: 1, stop: false };
    this.page = { messages: [], total: this.page.total, first: 0, last: 0 };
    await this.more();
  }

  async more() {
    const mine = this.search;
    const enough = this.page.messages.length + FOUND_MIN;
    let scanned = 0;
    mine.stop = false;
    this.stopSearch.hidden = false;
    try {
      do {
        const found = await api.get("search", { ...this.place, text: mine.text, sql: mine.sql,
          from: mine.next });
        if (this.closed || this.search !== mine) return;
        this.page.messages.push(...found.messages);
        scanned += found.scanned;
        mine.next = found.next;
        this.progress.textContent = `${number(scanned)} looked at`;
        this.draw();
      } while (mine.next && !mine.stop && this.page.messages.length < enough);
    } catch (error) {
      this.progress.textContent = "";
      toast(error.message, "error");
    } finally {
      this.stopSearch.hidden = true;
    }
  }

  clear() {
    this.text.value = "";
    this.sql.value = "";
    this.progress.textContent = "";
    this.first();
  }

  // --- one message --------------------------------------------------------------------

  async open(seq) {
    this.opened = seq;
    for (const row of this.body.children) {
      row.classList.toggle("open", Number(row.dataset.seq) === seq);
    }
    try {
      const where = { entity: this.entity.path, stream: this.tab.stream, seq };
      const shown = await api.get("message", where);
      if (this.opened !== seq) return;
      this.detail.hidden = false;
      this.split.classList.add("opened");
      fill(this.detail, h("header", {}, h("h2", {}, `#${number(seq)}`),
        h("div", { class: "buttons" }, this.detailActions(shown), h("button", { type: "button",
          class: "quiet", "aria-label": "Close", onclick: () => this.shut() }, "✕"))),
      messageView(shown, where));
      this.detail.scrollTop = 0;
    } catch (error) {
      toast(error.message, "error");
    }
  }

  detailActions(shown) {
    const one = { ...this.place, state: shown.state, seqs: [shown.seq] };
    const done = () => this.changed();
    const editable = shown.message !== null;
    const free = ["active", "deferred", "scheduled"].includes(shown.state);
    return [
      this.dead && this.may("Manage") && shown.state === "active" ? [
        button("Resubmit", () => resubmit(one, done), "primary"),
        editable ? button("Edit and resubmit", () => editAndResubmit(this.place, shown, done))
          : null,
      ] : null,
      shown.state === "deferred" && this.may("Listen")
        ? button("Make active", () => undefer(one, done)) : null,
      editable && this.may("Send") && this.entity.kind === "queue"
        ? button("Send a copy", () => this.outer.send(fresh(shown.message))) : null,
      free && this.may(shown.state === "scheduled" ? "Send" : "Listen")
        ? button(this.verb(), () => deleteAll(one, this.verb(), done), "danger") : null,
    ];
  }

  shut() {
    this.opened = 0;
    this.detail.hidden = true;
    this.split.classList.remove("opened");
    for (const row of this.body.querySelectorAll(".open")) row.classList.remove("open");
  }

  // --- selecting, and keys ------------------------------------------------------------

  toggle(seq, on = !this.selected.has(seq)) {
    if (on) this.selected.add(seq);
    else this.selected.delete(seq);
    const tick = this.body.querySelector(`[data-seq="${seq}"] input`);
    if (tick) tick.checked = on;
    this.drawActions();
  }

  toggleAll() {
    for (const line of this.page.messages) {
      if (this.all.checked) this.selected.add(line.seq);
      else this.selected.delete(line.seq);
    }
    this.draw();
  }

  current() { return document.activeElement?.closest?.("tr[data-seq]"); }

  step(by) {
    const rows = [...this.body.querySelectorAll("tr[data-seq]")];
    const to = rows[Math.max(0, Math.min(rows.length - 1, rows.indexOf(this.current()) + by))];
    to?.focus();
    if (to && this.opened) this.open(Number(to.dataset.seq));
  }

  get keys() {
    const onLine = (act) => () => (this.current() ? act() : false);
    return {
      "/": () => this.text.focus(),
      j: () => this.step(1), k: () => this.step(-1),
      ArrowDown: onLine(() => this.step(1)), ArrowUp: onLine(() => this.step(-1)),
      x: onLine(() => this.toggle(Number(this.current().dataset.seq))),
      n: () => { if (this.hasNext()) this.next(); },
      p: () => { if (this.hasPrevious()) this.previous(); },
      r: () => { if (this.dead) this.actions.querySelector("button.primary")?.click(); },
      Escape: () => this.shut(),
    };
  }
}
