// Rules of a subscription, and the tester: which rules match a message, and what actions do.

import * as api from "./api.js";
import { composer } from "./compose.js";
import { confirm, dialog, empty, field, fill, h, number, toast } from "./dom.js";
import { entityAddress, knownPaths, learnEntities } from "./entities.js";

function filterText(rule) {
  if (rule.filter === "sql") return rule.expression;
  if (rule.filter !== "correlation") return rule.filter;
  const values = Object.entries(rule.properties || {})
    .map(([name, value]) => `${name} = ${Array.isArray(value) ? value[1] : value}`);
  const fields = Object.entries(rule.correlation || {}).map(([n, v]) => `sys.${n} = ${v}`);
  return [...fields, ...values].join(" AND ");
}

// Fields of a rule; `read` gives it.
function ruleForm(start = {}) {
  const kind = h("select", { id: "rule-filter", onchange: () => adapt() },
    ["sql", "correlation", "true", "false"].map((each) => h("option",
      { value: each, selected: each === start.filter }, each)));
  const expression = h("textarea", { id: "rule-expression", rows: "2", class: "mono",
    spellcheck: "false", value: start.expression && start.filter === "sql" ? start.expression : "",
    placeholder: "amount > 10 AND sys.Label = 'order'" });
  const correlation = h("textarea", { id: "rule-correlation", rows: "3", class: "mono",
    spellcheck: "false", value: start.filter === "correlation" ? JSON.stringify({
      ...start.correlation,
      properties: Object.fromEntries(Object.entries(start.properties || {})
        .map(([name, [kind, text]]) => [name, kind === "string" ? text : [kind, text]])),
    }, null, 2) : "", placeholder: '{"label": "order", "properties": {"colour": "red"}}' });
  const action = h("textarea", { id: "rule-action", rows: "2", class: "mono",
    spellcheck: "false", value: start.action || "", placeholder: "SET colour = 'blue'" });
  const expressionField = field("SQL filter", expression);
  const correlationField = field("Correlation filter", correlation, "a JSON object; [\"int\", \"5\"] names a type");
  function adapt() {
    expressionField.hidden = kind.value !== "sql";
    correlationField.hidden = kind.value !== "correlation";
  }
  adapt();
  return {
    element: h("div", {}, field("Filter", kind), expressionField, correlationField,
      field("Action", action, "optional")),
    isEmpty: () => kind.value === "sql" && !expression.value.trim(),
    read: () => {
      const rule = { filter: kind.value, action: action.value.trim() };
      if (kind.value === "sql") rule.expression = expression.value.trim();
      if (kind.value === "correlation") {
        const { properties = {}, ...fields } = JSON.parse(correlation.value || "{}");
        Object.assign(rule, { correlation: fields, properties });
      }
      return rule;
    },
  };
}

export function rulesPanel(content, entity, changed) {
  const mayManage = entity.rights.includes("Manage");
  function edit(rule) {
    const name = h("input", { id: "rule-name", required: true, value: rule?.name || "",
      readonly: Boolean(rule) });
    const form = ruleForm(rule || {});
    dialog(rule ? `Rule ${rule.name}` : "New rule", [field("Name", name), form.element], {
      action: "Save",
      submit: async () => {
        await api.post("put-rule", { entity: entity.path,
          rule: { ...form.read(), name: name.value.trim() } });
        await draw();
      },
    });
  }
  async function draw() {
    const found = await api.get("entity", { entity: entity.path });
    changed();
    fill(content, h("div", { class: "actions" },
      mayManage ? h("button", { type: "button", class: "primary", onclick: () => edit(null) },
        "New rule") : null,
      h("a", { class: "button", href: `#/tester?entity=${encodeURIComponent(entity.path)}` },
        "Try a message")),
    found.rules.length ? h("div", { class: "scroll" }, h("table", { class: "lines" },
      h("caption", { class: "hidden" }, "Rules"),
      h("thead", {}, h("tr", {}, ["Rule", "Kind", "Filter", "Action", ""].map((label) => h("th",
        { scope: "col" }, label)))),
      h("tbody", {}, found.rules.map((rule) => h("tr", { "data-rule": rule.name },
        h("th", { scope: "row" }, rule.name), h("td", {}, rule.filter),
        h("td", { class: "mono" }, filterText(rule)), h("td", { class: "mono" }, rule.action || ""),
        h("td", {}, mayManage ? [
          h("button", { type: "button", onclick: () => edit(rule) }, "Edit"), " ",
          h("button", { type: "button", class: "danger", onclick: () => confirm(
            `Delete rule ${rule.name}?`, "Messages that only it lets in will not come any more.",
            "Delete", async () => {
              await api.post("delete-rule", { entity: entity.path, rule: rule.name });
              await draw();
            }) }, "Delete")] : null))))))
      : empty("No rules: nothing comes in."));
  }
  draw().catch((error) => toast(error.message, "error"));
  return { refresh: draw, close: () => {}, keys: {} };
}

function verdict(rule) {
  const mark = rule.error ? ["bad", "✕ fails"] : rule.matches ? ["good", "✓ matches"]
    : ["off", "– no match"];
  return h("div", { class: `verdict ${mark[0]}`, "data-rule": rule.name },
    h("div", { class: "line" }, h("strong", {}, rule.name), h("span", { class: "mark" }, mark[1]),
      h("code", {}, filterText(rule))),
    rule.action ? h("div", { class: "line" }, h("span", { class: "label" }, "action"),
      h("code", {}, rule.action)) : null,
    rule.error ? h("p", { class: "failure" }, rule.error) : null,
    rule.result ? h("details", { open: true }, h("summary", {}, "What the subscription gets"),
      h("pre", { class: "body" }, JSON.stringify(rule.result, null, 2))) : null);
}

export async function testerPage({ main, parameters }) {
  await learnEntities();
  const entity = h("input", { id: "tester-entity", list: "tester-entities", autocomplete: "off",
    value: parameters.get("entity") || "", placeholder: "topic, or topic/Subscriptions/name" });
  const writer = composer({ subject: "order", body: "{}",
    application_properties: { colour: "red" } }, { schedule: false });
  const draft = ruleForm({ filter: "sql" });
  const results = h("div", { class: "results", "aria-live": "polite" });
  async function run(event) {
    event.preventDefault();
    try {
      const answer = await api.post("test-rules", { entity: entity.value.trim(),
        message: writer.read(), rule: draft.isEmpty() ? null : draft.read() });
      const rules = answer.subscriptions.flatMap((each) => each.rules);
      fill(results,
        answer.draft ? h("section", {}, h("h2", {}, "Your rule"), verdict(answer.draft)) : null,
        answer.subscriptions.map((each) => h("section", {},
          h("h2", {}, h("a", { href: entityAddress(each.subscription) }, each.subscription)),
          each.rules.length ? each.rules.map(verdict) : empty("No rules: nothing comes in."))),
        rules.length || answer.draft ? h("p", { class: "note" },
          `${number(rules.filter((rule) => rule.matches).length)} of ${number(rules.length)}`
          + " rules match. Nothing was sent.") : empty("Name a topic or write a rule to try."));
    } catch (error) {
      fill(results, h("p", { class: "failure", role: "alert" }, error.message));
    }
  }
  fill(main, h("div", { class: "heading" }, h("h1", {}, "Filter tester")),
    h("form", { class: "columns", onsubmit: run },
      h("section", { class: "card" }, h("h2", {}, "Message"), writer.element),
      h("section", { class: "card" }, h("h2", {}, "Rules"),
        field("Of a topic or subscription", entity, "all their rules are asked"),
        h("datalist", { id: "tester-entities" }, knownPaths(["topic", "subscription"])
          .map((path) => h("option", { value: path }))),
        h("h3", {}, "And a rule of your own"), draft.element,
        h("button", { type: "submit", class: "primary" }, "Try"), results)));
}
