// The pipeline's reports: pages that its jobs wrote, each shown in a frame of its own.

import * as api from "./api.js";
import { bytes, empty, fill, h, moment } from "./dom.js";

export async function reportsPage({ main, parameters }) {
  const { reports } = await api.get("reports");
  const chosen = reports.find((report) => report.name === parameters.get("name")) || reports[0];
  fill(main, h("div", { class: "heading" }, h("h1", {}, "Reports")),
    chosen ? h("div", { class: "reports" },
      h("nav", { "aria-label": "Reports" }, h("ul", { class: "links" }, reports.map((report) => h(
        "li", {}, h("a", {
          href: `#/reports?name=${encodeURIComponent(report.name)}`,
          "aria-current": report === chosen ? "true" : null,
        }, report.name.replace(/\/report\.html$/, "").replace(/\.html$/, "")),
        h("small", {}, moment(report.modified), ` · ${bytes(report.size)}`))))),
      h("iframe", { title: chosen.name, sandbox: "",
        src: api.address("report", { name: chosen.name }) }))
      : empty("None yet: the jobs of twinbus pipeline write them to the directory twinbus-reports "
        + "beside the broker's data directory."));
}
