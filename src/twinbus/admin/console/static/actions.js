// What is done to messages, one or many. Bulk work goes in steps that are each whole: it can be
// stopped, or cut off, at any time and run again.

import * as api from "./api.js";
import { composer, fresh } from "./compose.js";
import { dialog, field, h, number, toast } from "./dom.js";
import { knownPaths } from "./entities.js";

// What the selection means: named messages, those that a search finds, or all.
function scope(bulk) {
  const { entity, stream, state } = bulk;
  if (bulk.seqs?.length) return { body: { entity, stream, state, seqs: bulk.seqs },
    words: `${number(bulk.seqs.length)} message${bulk.seqs.length === 1 ? "" : "s"}` };
  if (bulk.search) return { body: { entity, stream, state, text: bulk.search.text,
    sql: bulk.search.sql, from: 1 }, words: "all messages that the search finds" };
  return { body: { entity, stream, state, from: 1 },
    words: `all ${number(bulk.total)} messages` };
}

// A dialog that works in steps, with progress and a way to stop.
function worker(title, content, { action, danger, prepare, name, done, told }) {
  const bar = h("progress", { max: "1", value: "0", hidden: true, "aria-label": title });
  const line = h("p", { class: "progress", role: "status" });
  let stopped = false;
  const box = dialog(title, [content, bar, line], {
    action, danger,
    submit: async () => {
      const body = prepare();
      bar.hidden = false;
      const sum = await api.inSteps(name, body, (so_far, next, to) => {
        bar.value = next ? next / to : 1;
        line.textContent = `${number(so_far.done)} done`;
      }, () => stopped);
      const over = sum.passed_over
        ? `; ${number(sum.passed_over)} passed over${sum.failures.length
          ? ` (${sum.failures[0]})` : " (held, gone or unfit)"}` : "";
      toast(`${told} ${number(sum.done)}${over}.`, sum.passed_over ? "error" : "info");
      done();
    },
  });
  box.addEventListener("close", () => { stopped = true; });
}

function targetField() {
  const control = h("input", { id: "target", list: "targets", autocomplete: "off",
    placeholder: "where they came from" });
  return [control, field("Resubmit to", control), h("datalist", { id: "targets" },
    knownPaths(["queue", "topic"]).map((path) => h("option", { value: path })))];
}

export function resubmit(bulk, done) {
  const { body, words } = scope(bulk);
  const [target, ...targetPart] = targetField();
  const action = h("textarea", { id: "change", rows: "3", class: "mono", spellcheck: "false",
    placeholder: "SET sys.Label = 'again'; REMOVE attempt" });
  worker(`Resubmit ${words}`, [
    h("p", { class: "note" }, "Each message leaves the dead-letter queue and enters its queue in "
      + "one step; it is never in neither place."),
    ...targetPart, field("Change each on the way", action,
      "SET and REMOVE, as in a rule's action; empty: as they are"),
  ], {
    action: "Resubmit", name: "resubmit", done, told: "Resubmitted",
    prepare: () => ({ ...body, target: target.value.trim(), action: action.value.trim() }),
  });
}

export function editAndResubmit(place, shown, done) {
  const writer = composer(fresh(shown.message));
  const [target, ...targetPart] = targetField();
  dialog(`Edit and resubmit #${number(shown.seq)}`, [writer.element, ...targetPart], {
    action: "Resubmit", wide: true,
    submit: async () => {
      await api.post("resubmit-edited", { entity: place.entity, stream: place.stream,
        seq: shown.seq, message: writer.read(), target: target.value.trim() });
      toast(`#${number(shown.seq)} was resubmitted with your changes.`);
      done();
    },
  });
}

export function deleteAll(bulk, verb, done) {
  const { body, words } = scope(bulk);
  worker(`${verb}: ${words}`, h("p", {},
    `${words[0].toUpperCase()}${words.slice(1)} of ${bulk.entity}`
    + `${bulk.stream === "main" ? "" : ` (${bulk.stream})`} will be gone for good.`), {
    action: verb, danger: true, name: "delete", done, prepare: () => body,
    told: verb.startsWith("Cancel") ? "Cancelled" : "Deleted",
  });
}

export async function undefer(bulk, done) {
  try {
    const answer = await api.post("undefer", scope(bulk).body);
    toast(`${number(answer.done)} made active.`);
    done();
  } catch (error) {
    toast(error.message, "error");
  }
}
