// The frame of the console: signing in, the bar, which page an address means, the keys.

import * as api from "./api.js";
import { dialog, fill, h, toast } from "./dom.js";
import { entitiesPage } from "./entities.js";
import { entityPage } from "./entity.js";
import { pairsPage } from "./pairs.js";
import { reportsPage } from "./reports.js";
import { testerPage } from "./rules.js";

const bar = document.getElementById("bar");
const main = document.getElementById("main");
const pages = [
  { id: "entities", label: "Entities", key: "e", open: entitiesPage },
  { id: "pairs", label: "Pairs", key: "p", open: pairsPage },
  { id: "tester", label: "Filter tester", key: "t", open: testerPage },
  { id: "reports", label: "Reports", key: "r", open: reportsPage },
];
const HELP = [
  ["/", "search"], ["j, k", "next, previous line"], ["Enter", "open a line"],
  ["x", "select a line"], ["n, p", "next, previous page"], ["s", "send a message"],
  ["r", "resubmit what is selected"], [".", "refresh"], ["Esc", "close"],
  ["g e", "entities"], ["g p", "pairs"], ["g t", "filter tester"], ["g r", "reports"],
  ["?", "this list"],
];

let about = null;
let leave = () => {};
let keys = {};

// --- signing in ----------------------------------------------------------------------

function signInPage() {
  leave();
  leave = () => {};
  about = null;
  bar.hidden = true;
  const connection = h("textarea", {
    id: "connection", rows: "3", autocomplete: "off", spellcheck: "false",
    placeholder: "Endpoint=sb://…;SharedAccessKeyName=…;SharedAccessKey=…",
  });
  const policy = h("input", {
    id: "policy", autocomplete: "username", value: "RootManageSharedAccessKey",
  });
  const key = h("input", { id: "key", type: "password", autocomplete: "current-password" });
  const failure = h("p", { class: "failure", role: "alert" });
  const submit = async (event) => {
    event.preventDefault();
    failure.textContent = "";
    try {
      about = await api.signIn(connection.value.trim()
        ? { connection_string: connection.value }
        : { policy: policy.value.trim(), key: key.value.trim() });
      enter();
    } catch (error) {
      failure.textContent = error.message;
    }
  };
  fill(main, h("form", { class: "sign-in card", onsubmit: submit },
    h("h1", {}, h("img", { src: "/console/static/icon.svg", alt: "", width: "28", height: "28" }),
      "Twinbus"),
    h("label", { class: "field" }, h("span", {}, "Policy"), policy),
    h("label", { class: "field" }, h("span", {}, "Key"), key),
    h("div", { class: "or" }, "or"),
    h("label", { class: "field" }, h("span", {}, "Connection string"), connection),
    failure,
    h("button", { class: "primary", type: "submit" }, "Sign in")));
  key.focus();
}

function enter() {
  drawBar();
  route();
}

function drawBar() {
  bar.hidden = false;
  fill(bar,
    h("a", { class: "brand", href: "#/entities" },
      h("img", { src: "/console/static/icon.svg", alt: "", width: "22", height: "22" }),
      h("strong", {}, "Twinbus"), h("span", { class: "namespace" }, about.namespace)),
    h("nav", { "aria-label": "Pages" }, pages.map((page) => h("a", {
      href: `#/${page.id}`, "data-page": page.id,
    }, page.label))),
    h("div", { class: "who" },
      h("span", { class: "policy", title: `Rights: ${about.rights.join(", ")}` },
        about.policy, h("small", {}, about.rights.join(" · "))),
      h("button", { type: "button", class: "quiet", "aria-label": "Light or dark", onclick: turn },
        "◐"),
      h("button", { type: "button", class: "quiet", "aria-label": "Keys", onclick: help }, "?"),
      h("button", { type: "button", onclick: signOut }, "Sign out")));
}

async function signOut() {
  await api.signOut();
  location.hash = "";
  signInPage();
}

// --- light and dark ------------------------------------------------------------------

function turn() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme || (dark ? "dark" : "light");
  const next = now === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  localStorage.setItem("twinbus-theme", next);
}

// --- pages ---------------------------------------------------------------------------

async function route() {
  if (!about) return;
  const [path, query = ""] = location.hash.slice(2).split("?");
  const [id, ...rest] = path.split("/");
  const parameters = new URLSearchParams(query);
  leave();
  leave = () => {};
  keys = {};
  for (const box of document.querySelectorAll("dialog[open]")) box.close();
  for (const link of bar.querySelectorAll("nav a")) {
    const current = link.dataset.page === (id === "entity" ? "entities" : id || "entities");
    if (current) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  // Each page has an element of its own: one that is late must not draw over the next.
  const own = h("div");
  fill(main, own);
  const place = { main: own, about, parameters,
    keys: (given) => { if (own.isConnected) keys = given; } };
  const open = id === "entity"
    ? () => entityPage({ ...place, path: decodeURIComponent(rest.join("/")) })
    : () => (pages.find((page) => page.id === id) || pages[0]).open(place);
  try {
    const left = (await open()) || (() => {});
    if (own.isConnected) leave = left;
    else left();
  } catch (error) {
    fill(own, h("p", { class: "failure", role: "alert" }, error.message));
  }
}

// --- keys ----------------------------------------------------------------------------

function help() {
  dialog("Keys", h("table", { class: "keys" }, HELP.map(([key, text]) => h("tr", {},
    h("td", {}, h("kbd", {}, key)), h("td", {}, text)))), { action: "Close", submit: () => true });
}

let going = false;
document.addEventListener("keydown", (event) => {
  if (!about || event.ctrlKey || event.metaKey || event.altKey) return;
  if (document.querySelector("dialog[open]")) return;
  const typing = event.target.matches?.("input:not([type=checkbox]), textarea, select");
  if (event.key === "Escape" && typing) { event.target.blur(); return; }
  if (typing) return;
  if (going) {
    going = false;
    const page = pages.find((each) => each.key === event.key);
    if (page) { location.hash = `#/${page.id}`; event.preventDefault(); return; }
  }
  if (event.key === "g") { going = true; setTimeout(() => { going = false; }, 1200); return; }
  if (event.key === "?") { help(); event.preventDefault(); return; }
  const act = keys[event.key];
  if (act && act(event) !== false) event.preventDefault();
});

const theme = localStorage.getItem("twinbus-theme");
if (theme) document.documentElement.dataset.theme = theme;
api.whenLost(() => { if (about) { toast("You were signed out.", "error"); signInPage(); } });
addEventListener("hashchange", route);
about = await api.session().catch(() => null);
if (about) enter(); else signInPage();
