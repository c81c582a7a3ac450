"""The reports in a terminal: short tables, the timeline drawn with signs, the verdict.

The job's tables go in as plain rows; what Rich can print comes out. It shows what a person
wants to know first; the page and the Parquet tables have the rest.
"""

from collections.abc import Callable, Sequence
from typing import Literal

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from twinbus.forms.plain import printable
from twinbus.spark.report import charts, pages
from twinbus.spark.report.page import Row, text, total

ROWS_MAX = 25
# How each step is drawn; the signs differ for those who see no colours.
_LOOKS = {
    "up": ("─", "green"),
    "suspected": ("?", "yellow"),
    "failed over": ("█", "red"),
    "draining": ("▒", "blue"),
    "drained": ("•", "green"),
}
# What a terminal has room for.
_OUTAGE = (
    "path", "number", "state", "pings", "backlogged", "high_water", "returned", "discarded", "left",
)  # fmt: skip
_STEP = ("path", "number", "step", "at", "seconds", "messages")
_GROUP = ("entity", "reason", "family", "open", "resolved", "oldest", "advice")
_PRICED = ("namespace", "entity", "kind", "operations", "units", "price", "currency")
_FOUR = ("primary", "step", "messages", "units", "price", "currency", "basis")
_IDLE = ("day", "namespace", "queues", "seconds_seen", "predicted", "measured", "price")
_TOTAL = ("kind", "operations", "units", "price", "currency")
_TIMES = ("entity", "measure", "messages", "p50_ms", "p95_ms", "p99_ms", "max_ms")
_LOCKS = ("entity", "hour", "deliveries", "redeliveries", "locks_lost")
_PLACE = ("kind", "entity", "seq", "count", "lsns", "text")


def render(job: str, tables: pages.Tables, width: int = 80) -> list[RenderableType]:
    """What to print for a job, from top to bottom."""
    return _PARTS[job](tables, width)


def rows_table(title: str, rows: Sequence[Row], columns: Sequence[str] | None = None) -> Table:
    """Rows as a table; numbers to the right, and no more than a screenful."""
    shown = list(columns or (rows[0] if rows else ()))
    table = Table(title=title, title_justify="left", header_style="bold", box=None, pad_edge=False)
    for name in shown:
        numeric = any(isinstance(row.get(name), int | float) for row in rows)
        side: Literal["left", "right"] = "right" if numeric else "left"
        table.add_column(name.replace("_", " "), justify=side, overflow="fold")
    for row in rows[:ROWS_MAX]:
        table.add_row(*(Text(printable(text(row.get(name)))) for name in shown))
    if total(rows) > ROWS_MAX:
        table.caption = f"and {total(rows) - ROWS_MAX:,} more"
    return table


def timeline(outages: Sequence[Row], width: int) -> Text:
    """One line for each entity: up, suspected, failed over, draining, drained."""
    lanes = pages.lanes(outages)
    moments = [at for lane in lanes for span in lane.spans for at in (span.start_s, span.end_s)]
    if not moments:
        return Text("No entity has failed over.")
    first, last = min(moments), max(moments)
    name_width = min(30, max(len(lane.name) for lane in lanes))
    wide = max(20, width - name_width - 2)
    per_block = (last - first) / wide or 1.0
    drawn = Text()
    for lane in lanes:
        drawn.append(f"{printable(lane.name)[:name_width]:<{name_width}}  ")
        for block in range(wide):
            start, end = first + block * per_block, first + (block + 1) * per_block
            step = _step_between(lane.spans, start, end)
            drawn.append(*(_LOOKS[step] if step else " "))
        drawn.append("\n")
    left, right = (charts.clock(at, last - first) for at in (first, last))
    drawn.append(f"{'':<{name_width}}  {left}{right:>{wide - len(left)}}\n", "dim")
    for step, (sign, colour) in _LOOKS.items():
        drawn.append(sign, colour).append(f" {step}   ")
    return drawn


def _step_between(spans: Sequence[charts.Span], start: float, end: float) -> str | None:
    """What a block stands for: the gravest step that touches it, so that none disappears."""
    touching = [span.kind for span in spans if span.start_s < end and span.end_s >= start]
    order = ("failed over", "suspected", "draining", "up", "drained")
    return min(touching, key=order.index, default=None)


def _cost(tables: pages.Tables, _: int) -> list[RenderableType]:
    return [
        rows_table("Cost by entity and kind", tables.get("entities", ()), _PRICED),
        *_if_any("Messages that went through the backlog (C2)", tables.get("syphoned", ()), _FOUR),
        *_if_any("Calls of an idle syphon (C3)", tables.get("idle", ()), _IDLE),
        *_if_any("In all", tables.get("totals", ()), _TOTAL),
    ]


def _dead_letters(tables: pages.Tables, _: int) -> list[RenderableType]:
    return [
        rows_table("Dead letters by entity and reason", tables.get("groups", ()), _GROUP),
        *_if_any("Age of those that are open", tables.get("ages", ())),
    ]


def _failovers(tables: pages.Tables, width: int) -> list[RenderableType]:
    outages = tables.get("outages", ())
    return [
        timeline(outages, width),
        *_if_any("Outages", outages, _OUTAGE),
        *_if_any("Step by step", tables.get("steps", ()), _STEP),
    ]


def _latency(tables: pages.Tables, _: int) -> list[RenderableType]:
    return [
        rows_table("Latency in milliseconds", tables.get("entities", ()), _TIMES),
        *_if_any("Lock losses and redeliveries", tables.get("locks", ()), _LOCKS),
    ]


def _audit(tables: pages.Tables, _: int) -> list[RenderableType]:
    violations = tables.get("violations", ())
    said = str(tables["verdict"][0]["verdict"])
    style = "bold green" if said == "clean" else "bold red"
    return [
        Text("Audit: ").append(said, style),
        *_if_any("What was checked", tables.get("checks", ())),
        *_if_any("Violations", violations, _PLACE),
    ]


def _if_any(
    title: str, rows: Sequence[Row], columns: Sequence[str] | None = None
) -> list[RenderableType]:
    return [rows_table(title, rows, columns)] if rows else []


_PARTS: dict[str, Callable[[pages.Tables, int], list[RenderableType]]] = {
    "cost": _cost,
    "dead-letters": _dead_letters,
    "failovers": _failovers,
    "latency": _latency,
    "audit": _audit,
}
