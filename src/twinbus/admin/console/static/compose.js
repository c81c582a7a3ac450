// Writing a message: to send, to schedule, to send again with changes, or to try rules on. Plain
// fields for what people mostly need, and the whole message as JSON for everything else.

import { field, fill, h, tabs } from "./dom.js";

const FIELDS = [
  ["message_id", "Message id"], ["subject", "Subject"], ["session_id", "Session id"],
  ["correlation_id", "Correlation id"], ["content_type", "Content type"], ["to", "To"],
  ["reply_to", "Reply to"], ["time_to_live", "Time to live"],
];
const BROKERS_OWN = ["sequence_number", "enqueued_sequence_number", "enqueued_time_utc",
  "locked_until_utc", "dead_letter_source", "lock_token", "partition_id", "state",
  "delivery_count"];
const DEATH = ["DeadLetterReason", "DeadLetterErrorDescription"];

// A message as it may be sent again: without what brokers write on it.
export function fresh(message) {
  const copy = structuredClone(message);
  for (const name of [...BROKERS_OWN, "scheduled_enqueue_time_utc"]) delete copy[name];
  if (copy.application_properties && !Array.isArray(copy.application_properties)) {
    for (const name of DEATH) delete copy.application_properties[name];
    if (!Object.keys(copy.application_properties).length) delete copy.application_properties;
  }
  return copy;
}

function localTime(iso) {
  const t = new Date(iso);
  return new Date(t.getTime() - t.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}

// Fields turn every end of a line into "\n" (and those of one line drop them): what nobody changed
// there stays as it was sent.
function edited(field, sent) {
  const shown = h(field.tagName, { value: sent }).value;
  return field.value === shown ? sent : field.value;
}

// One property a line, each as short as can be.
function asLines(map) {
  const lines = Object.entries(map).map(([k, v]) => `  ${JSON.stringify(k)}: ${JSON.stringify(v)}`);
  return `{\n${lines.join(",\n")}\n}`;
}

function readJson(text, what) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${what}: ${error.message}`);
  }
}

// Gives an element and `read`, which gives the message or throws what is wrong with it.
export function composer(start = {}, { schedule = true } = {}) {
  let message = structuredClone(start);
  let mode = typeof (message.body ?? "") === "string"
    && !Array.isArray(message.application_properties)
    && FIELDS.every(([name]) => typeof (message[name] ?? "") === "string") ? "fields" : "json";
  const place = h("div", { class: "composer" });
  let read = () => message;

  function asFields() {
    const inputs = FIELDS.map(([name, label]) => [name, h("input", {
      id: `message-${name}`, value: message[name] ?? "", autocomplete: "off",
      placeholder: name === "time_to_live" ? "PT1H" : null,
    }), label]);
    const when = h("input", {
      id: "message-schedule", type: "datetime-local", step: "1",
      value: message.scheduled_enqueue_time_utc
        ? localTime(message.scheduled_enqueue_time_utc) : "",
    });
    const properties = h("textarea", {
      id: "message-properties", rows: "4", spellcheck: "false", class: "mono",
      value: message.application_properties ? asLines(message.application_properties) : "",
      placeholder: '{"colour": "red", "amount": {"int": 5}}',
    });
    const body = h("textarea", {
      id: "message-body", rows: "8", spellcheck: "false", class: "mono",
      value: message.body ?? "",
    });
    read = () => {
      const found = { ...message };
      for (const [name, input] of inputs) {
        const value = edited(input, message[name] ?? "");
        if (value) found[name] = value;
        else delete found[name];
      }
      delete found.scheduled_enqueue_time_utc;
      if (when.value) found.scheduled_enqueue_time_utc = new Date(when.value).toISOString();
      delete found.application_properties;
      if (properties.value.trim()) {
        found.application_properties = readJson(properties.value, "Application properties");
      }
      found.body = edited(body, message.body ?? "");
      return found;
    };
    return h("div", { class: "grid" },
      h("div", { class: "full" }, field("Body", body)),
      inputs.map(([, input, label]) => field(label, input)),
      schedule ? field("Deliver at", when, "empty: at once; in this browser's time") : null,
      h("div", { class: "full" }, field("Application properties", properties,
        "a JSON object; {\"int\": 5} names a type")));
  }

  function asJson() {
    const whole = h("textarea", {
      id: "message-json", rows: "18", spellcheck: "false", class: "mono",
      value: JSON.stringify(message, null, 2),
    });
    read = () => readJson(whole.value, "Message");
    return field("The whole message", whole);
  }

  const failure = h("p", { class: "failure", role: "alert" });
  function show(next) {
    failure.textContent = "";
    try {
      if (place.childElementCount) message = read();
      if (next === "fields" && typeof (message.body ?? "") !== "string") {
        throw new Error("This body is no plain text: it can be edited as JSON only.");
      }
    } catch (error) {
      failure.textContent = error.message;
      return;
    }
    mode = next;
    const items = [{ id: "fields", label: "Fields" }, { id: "json", label: "JSON" }];
    fill(place, tabs("How to write the message", items, mode, show),
      mode === "fields" ? asFields() : asJson(), failure);
  }
  show(mode);
  return { element: place, read: () => read() };
}
