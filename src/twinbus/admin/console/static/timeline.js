// When scheduled messages are due: a bar for each of some equal spans of time.

import * as api from "./api.js";
import { fill, h, moment, number } from "./dom.js";

const LOWEST_PERCENT = 6;

export async function drawTimeline(element, entity) {
  const found = await api.get("timeline", { entity, stream: "main" });
  element.hidden = !found.total;
  if (!found.total) return;
  const highest = Math.max(...found.counts);
  const start = (i) => found.start + i * found.span;
  const end = start(found.counts.length);
  const label = `${number(found.total)} scheduled messages until ${new Date(end).toISOString()}`;
  fill(element,
    h("div", { class: "bars", role: "img", "aria-label": label }, found.counts.map((count, i) => {
      const bar = h("i", { title: count
        ? `${number(count)} due from ${new Date(start(i)).toLocaleString()}` : null });
      bar.style.height = `${count ? Math.max(LOWEST_PERCENT, (count / highest) * 100) : 0}%`;
      return bar;
    })),
    h("div", { class: "ends" }, moment(found.start), moment(end)));
}
