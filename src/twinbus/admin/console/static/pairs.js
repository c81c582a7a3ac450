// Paired namespaces as this broker sees them: what is parked here, for where, what the syphon
// moves, and which entities are pinged.

import * as api from "./api.js";
import {
  bytes, duration, empty, every, fill, h, moment, number, rate, saying, short,
} from "./dom.js";
import { entityAddress } from "./entities.js";

const POLL_MS = 2000;

export async function pairsPage({ main, keys }) {
  let before = null;
  const counted = new Map();
  const backlog = h("div");
  const pinged = h("div");
  const told = h("div");
  const warning = h("p", { class: "failure", role: "alert" });
  fill(main, h("div", { class: "heading" }, h("h1", {}, "Paired namespaces")), warning,
    h("h2", {}, "Entities, as the applications see them"), told,
    h("h2", {}, "Backlog queues in this namespace"), backlog,
    h("h2", {}, "Entities of this namespace that are pinged"), pinged);

  // Whether an entity has failed over is known to those who send; they may keep files of it.
  function drawTold(entities, now) {
    if (entities === null) {
      fill(told, empty("This is told of the whole broker: it takes a policy that gives Listen in "
        + "each of its namespaces."));
      return;
    }
    fill(told, entities.length ? h("div", { class: "scroll" }, h("table", { class: "lines" },
      h("caption", { class: "hidden" }, "State of each entity of a pair"),
      h("thead", {}, h("tr", {}, ["Entity", "Pair", "Application", "State", "Since", "Parked",
        "Moved home", "Pings", "Why"].map((label) => h("th", { scope: "col" }, label)))),
      h("tbody", {}, entities.map((each) => h("tr", { "data-told": each.path },
        h("th", { scope: "row" }, each.path), h("td", {}, each.pair), h("td", {}, each.client),
        h("td", {}, h("span", { class: `state ${each.state.replace(" ", "-")}` },
          each.state || "not told")),
        h("td", {}, each.since ? [moment(Date.parse(each.since)),
          ` (${duration(now - Date.parse(each.since))})`] : ""),
        h("td", {}, each.parked ? number(each.parked) : ""),
        h("td", {}, each.syphoned ? number(each.syphoned) : ""),
        h("td", {}, each.pings ? number(each.pings) : ""),
        h("td", { class: "clip" }, each.error))))))
      : empty("Nothing is told: applications that keep an EventFile in the directory "
        + "twinbus-events beside the broker's data are shown here."));
  }

  function rates(now, old) {
    const seconds = old ? (now.time - old.time) / 1000 : 0;
    const speed = (path, name) => {
      const queue = old?.queues.find((each) => each.path === path);
      const current = now.queues.find((each) => each.path === path);
      return queue && seconds > 0 ? Math.max(0, current[name] - queue[name]) / seconds : 0;
    };
    return speed;
  }

  function card(primary, queues, now, speed) {
    const depth = queues.reduce((sum, queue) => sum + queue.active + queue.locked, 0);
    const out = queues.reduce((sum, queue) => sum + speed(queue.path, "settled"), 0);
    const oldest = Math.min(...queues.filter((queue) => queue.oldest).map((q) => q.oldest));
    return h("section", { class: "card", "data-primary": primary },
      h("h3", {}, `of ${primary}`),
      h("p", { class: "summary" },
        h("span", {}, h("b", {}, number(depth)), " parked"),
        h("span", {}, h("b", {}, rate(out) || "0/s"), " moved home"),
        depth && Number.isFinite(oldest) ? h("span", {}, "oldest ",
          h("b", {}, duration(now.time - oldest))) : null,
        depth && out ? h("span", {}, "empty in about ", h("b", {}, duration(depth / out * 1000)))
          : null,
        depth && !queues.some((queue) => queue.receivers)
          ? h("span", { class: "status" }, "no syphon is running") : null),
      h("div", { class: "scroll" }, h("table", { class: "lines" },
        h("caption", { class: "hidden" }, `Backlog queues of ${primary}`),
        h("thead", {}, h("tr", {}, ["Queue", "Parked", "Locked", "In", "Moved", "Receivers",
          "Dead-letter", "Size"].map((label) => h("th", { scope: "col" }, label)))),
        h("tbody", {}, queues.map((queue) => h("tr", { "data-path": queue.path },
          h("th", { scope: "row" }, h("a", { href: entityAddress(queue.path) }, queue.path)),
          h("td", {}, short(queue.active)), h("td", {}, queue.locked || ""),
          h("td", {}, rate(speed(queue.path, "in"))),
          h("td", {}, rate(speed(queue.path, "settled"))),
          h("td", {}, queue.receivers || ""), h("td", {}, queue.dead_letter || ""),
          h("td", {}, bytes(queue.size))))))),
      destinations(primary, queues));
  }

  function destinations(primary, queues) {
    const known = counted.get(primary);
    return h("div", { class: "destinations" },
      h("button", { type: "button", onclick: () => count(primary, queues) },
        "Count by destination"),
      known ? h("table", { class: "properties" }, h("tbody", {},
        [...known.entries()].sort((a, b) => b[1] - a[1]).map(([path, messages]) => h("tr", {},
          h("th", { scope: "row" }, path), h("td", {}, number(messages)))))) : null);
  }

  async function count(primary, queues) {
    const sums = new Map();
    counted.set(primary, sums);
    for (const queue of queues) {
      let from = 1;
      do {
        const step = await api.get("destinations", { entity: queue.path, from });
        for (const [path, messages] of Object.entries(step.counts)) {
          sums.set(path, (sums.get(path) || 0) + messages);
        }
        from = step.next;
      } while (from);
    }
    draw(before, before);
  }

  function draw(now, old) {
    const primaries = Map.groupBy ? Map.groupBy(now.queues, (queue) => queue.primary)
      : now.queues.reduce((map, queue) => map.set(queue.primary,
        [...(map.get(queue.primary) || []), queue]), new Map());
    fill(backlog, primaries.size ? [...primaries].map(([primary, queues]) => card(primary, queues,
      now, rates(now, old))) : empty("None: no pair parks its messages here."));
    drawTold(now.told, now.time);
    fill(pinged, now.pinged.length ? h("table", { class: "properties" }, h("tbody", {},
      now.pinged.map((each) => h("tr", { "data-path": each.path },
        h("th", { scope: "row" }, h("a", { href: entityAddress(each.path) }, each.path)),
        h("td", {}, `${number(each.pings)} pings`)))))
      : empty("None since this broker started."));
  }

  async function refresh() {
    const now = await api.get("pairs");
    draw(now, before);
    before = now;
  }

  const poll = saying(warning, refresh);
  keys({ ".": poll });
  await refresh();
  return every(POLL_MS, poll);
}
