// Sessions of an entity: what waits in each, who holds it, what state it carries.

import * as api from "./api.js";
import { bytes, empty, every, fill, h, moment, number, saying } from "./dom.js";
import { asText, bodyBytes, hexDump, indentJson } from "./message.js";

export function sessionsPanel(content, entity) {
  let after = "";
  const body = h("tbody");
  const state = h("aside", { class: "detail", hidden: true, "aria-label": "Session state" });
  const foot = h("nav", { class: "pager", "aria-label": "Pages" });
  const warning = h("p", { class: "failure", role: "alert" });
  fill(content, warning, h("div", { class: "split" }, h("div", { class: "list" },
    h("div", { class: "scroll" }, h("table", { class: "lines" },
      h("caption", { class: "hidden" }, `Sessions of ${entity.path}`),
      h("thead", {}, h("tr", {}, ["Session", "Messages", "First", "Held until", "State", "Set"]
        .map((label) => h("th", { scope: "col" }, label)))), body)), foot), state));

  const refresh = saying(warning, draw);

  async function draw() {
    const found = await api.get("sessions", { entity: entity.path, after });
    fill(body, found.sessions.length ? found.sessions.map((session) => h("tr", {
      tabindex: "0", "data-session": session.id, onclick: () => open(session.id),
      onkeydown: (event) => { if (event.key === "Enter") open(session.id); },
    },
    h("th", { scope: "row" }, session.id), h("td", {}, number(session.messages)),
    h("td", { class: "mono" }, session.first ? `#${session.first}` : ""),
    h("td", {}, session.locked_until ? moment(session.locked_until) : ""),
    h("td", {}, session.state_size === null ? "" : bytes(session.state_size)),
    h("td", {}, moment(session.state_set))))
      : h("tr", {}, h("td", { colspan: "6" }, empty("No sessions."))));
    fill(foot, h("span", {}, `${number(found.total)} sessions`),
      found.more ? h("button", { type: "button", onclick: () => {
        after = found.sessions.at(-1).id;
        refresh();
      } }, "Next page") : null,
      after ? h("button", { type: "button", onclick: () => { after = ""; refresh(); } },
        "First page") : null);
  }

  async function open(id) {
    const found = await api.get("session-state", { entity: entity.path, session: id });
    const pre = h("pre", { class: "body", tabindex: "0" });
    if (found.state === null) pre.textContent = "(no state)";
    else {
      const data = bodyBytes(found.state);
      const text = asText(data);
      try { pre.textContent = indentJson(text); } catch { pre.textContent = text ?? hexDump(data); }
    }
    state.hidden = false;
    fill(state, h("header", {}, h("h2", {}, `Session ${id}`), h("button", { type: "button",
      class: "quiet", "aria-label": "Close", onclick: () => { state.hidden = true; } }, "✕")), pre);
  }

  refresh();
  const stop = every(2000, refresh);
  return { refresh, close: stop, keys: { Escape: () => { state.hidden = true; } } };
}
