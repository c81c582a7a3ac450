// Elements, dialogs and numbers for people. Texts only ever become text nodes: what is in a
// message can never become markup.

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name === "value") element.value = value;
    else if (name === "checked") element.checked = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  append(element, children);
  return element;
}

export function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

export function fill(element, ...children) {
  element.replaceChildren();
  return append(element, children);
}

const whole = new Intl.NumberFormat("en");
export const number = (value) => whole.format(value);

export function short(value) {
  if (value < 10_000) return number(value);
  if (value < 1_000_000) return `${(value / 1000).toFixed(value < 100_000 ? 1 : 0)} k`;
  return `${(value / 1_000_000).toFixed(2)} M`;
}

export function bytes(value) {
  if (value < 1024) return `${value} B`;
  if (value < 1024 ** 2) return `${(value / 1024).toFixed(1)} KB`;
  if (value < 1024 ** 3) return `${(value / 1024 ** 2).toFixed(1)} MB`;
  return `${(value / 1024 ** 3).toFixed(1)} GB`;
}

export function rate(value) {
  if (!value) return "";
  return value < 10 ? `${value.toFixed(1)}/s` : `${short(Math.round(value))}/s`;
}

export function duration(milliseconds) {
  const seconds = Math.round(Math.abs(milliseconds) / 1000);
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  if (seconds < 86_400) {
    return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  }
  return `${Math.floor(seconds / 86_400)} d ${Math.floor((seconds % 86_400) / 3600)} h`;
}

const pad = (value) => String(value).padStart(2, "0");

export function clock(milliseconds) {
  const t = new Date(milliseconds);
  const day = `${t.getFullYear()}-${pad(t.getMonth() + 1)}-${pad(t.getDate())}`;
  const today = new Date();
  const time = `${pad(t.getHours())}:${pad(t.getMinutes())}:${pad(t.getSeconds())}`;
  return t.toDateString() === today.toDateString() ? time : `${day} ${time}`;
}

export function moment(milliseconds) {
  if (!milliseconds) return "";
  const iso = new Date(milliseconds).toISOString();
  return h("time", { datetime: iso, title: iso }, clock(milliseconds));
}

export function toast(text, kind = "info") {
  const item = h("div", { class: `toast ${kind}`, role: kind === "error" ? "alert" : null }, text);
  document.getElementById("toasts").append(item);
  setTimeout(() => item.remove(), kind === "error" ? 9000 : 4000);
}

// A dialog with a title and a form. `submit` gets nothing and may throw: what it throws is
// shown and the dialog stays.
export function dialog(title, content, { action = "OK", danger = false, submit, wide = false }) {
  const failure = h("p", { class: "failure", role: "alert" });
  const go = h("button", { class: danger ? "danger" : "primary", type: "submit" }, action);
  const box = h(
    "dialog", { class: wide ? "wide" : null, "aria-label": title },
    h("form", {
      method: "dialog",
      onsubmit: async (event) => {
        event.preventDefault();
        failure.textContent = "";
        go.disabled = true;
        try {
          if ((await submit()) !== false) box.close();
        } catch (error) {
          failure.textContent = error.message;
        } finally {
          go.disabled = false;
        }
      },
    },
    h("h2", {}, title), content, failure,
    h("div", { class: "buttons" },
      h("button", { type: "button", onclick: () => box.close() }, "Cancel"), go)));
  box.addEventListener("close", () => box.remove());
  document.body.append(box);
  box.showModal();
  return box;
}

export function confirm(title, text, action, submit) {
  return dialog(title, h("p", {}, text), { action, danger: true, submit });
}

export function field(label, control, hint) {
  return h("label", { class: "field" }, h("span", {}, label), control,
    hint ? h("small", {}, hint) : null);
}

// Tabs: `items` are {id, label, count, mark}; the chosen one is told.
export function tabs(label, items, chosen, choose) {
  return h("div", { role: "tablist", "aria-label": label, class: "tabs", onkeydown: arrows },
    items.map((item) => h("button", {
      role: "tab", id: `tab-${item.id}`, type: "button",
      "aria-selected": String(item.id === chosen),
      tabindex: item.id === chosen ? "0" : "-1",
      class: item.mark ? "marked" : null,
      onclick: () => choose(item.id),
    }, item.label, item.count === undefined ? null
      : h("span", { class: "count", "data-count": item.id }, short(item.count)))));
}

function arrows(event) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  const all = [...event.currentTarget.querySelectorAll("[role=tab]")];
  const next = all[(all.indexOf(document.activeElement) + step + all.length) % all.length];
  next.focus();
  event.preventDefault();
}

export function empty(text) {
  return h("p", { class: "empty" }, text);
}

// Does `work`, and writes what it throws to an element, which is empty again once it goes well.
export function saying(place, work) {
  return async () => {
    try {
      await work();
      place.textContent = "";
    } catch (error) {
      place.textContent = error.message;
    }
  };
}

// Asks again and again while the page is seen, whatever becomes of an asking; ends when `stop` is
// called.
export function every(milliseconds, work) {
  let timer = null;
  let stopped = false;
  const turn = async () => {
    try {
      if (!document.hidden) await work();
    } finally {
      if (!stopped) timer = setTimeout(turn, milliseconds);
    }
  };
  timer = setTimeout(turn, milliseconds);
  return () => { stopped = true; clearTimeout(timer); };
}
