"""What each job's page and terminal report show: which tables, and which pictures of them.

The job's tables go in as plain rows; markup goes out. Columns that a table lacks are simply
not drawn, so that a capture with nothing of a kind still gives a page.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from twinbus.spark.report import charts
from twinbus.spark.report.page import Row, page, paragraph, section, table, total

Tables = Mapping[str, Sequence[Row]]

TITLES = {
    "cost": "What it cost",
    "dead-letters": "Dead letters",
    "failovers": "Failovers",
    "latency": "Latency",
    "audit": "Audit",
}
#: What an entity went through in an outage, in this order, and the colour of each step.
STEPS = ("up", "suspected", "failed over", "draining", "drained")
_STEP_COLOURS = dict(zip(STEPS, (2, 1, 3, 0, 7), strict=True))
#: The column that says when a step began.
_STARTS = {
    "up": "last_success",
    "suspected": "suspected",
    "failed over": "engaged",
    "draining": "recovered",
    "drained": "drained",
}
_MARKS = {
    "first_ping": "first ping",
    "last_ping": "last ping",
    "high_water_at": "most messages in the backlog",
}
#: Tables that pictures are made of and that may have more rows than are shown.
_DRAWN = {"dead-letters": ("groups", "trend"), "failovers": ("backlog",), "latency": ("hours",)}
_SERIES_MAX = charts.COLOURS - 1
_OTHERS = "others"


def render(job: str, tables: Tables, made_at: datetime) -> str:
    """The page of a job."""
    parts = [*_left_out(job, tables), *_PARTS[job](tables)]
    return page(f"{TITLES[job]} – Twinbus", parts, made_at)


def _left_out(job: str, tables: Tables) -> list[str]:
    """A picture of a part must not pass for the whole."""
    return [
        paragraph(
            f"Pictures show the first {len(rows):,} of the {total(rows):,} rows of {name}; the"
            " Parquet files have them all."
        )
        for name in _DRAWN.get(job, ())
        if total(rows := tables.get(name, ())) > len(rows)
    ]


def _cost(tables: Tables) -> list[str]:
    return [
        section("By kind", table(tables.get("totals", ()))),
        section("Units by day and kind", _stacked(tables.get("days", ()), "kind", "units")),
        section(
            "Units by day and entity", _stacked(tables.get("entity_days", ()), "entity", "units")
        ),
        section("By entity and kind", table(tables.get("entities", ()))),
        section("Messages that went through the backlog (C2)", table(tables.get("syphoned", ()))),
        section("Calls of an idle syphon (C3)", table(tables.get("idle", ()))),
        section("By client and day", table(tables.get("operations", ()))),
    ]


def _dead_letters(tables: Tables) -> list[str]:
    groups = tables.get("groups", ())
    by_reason: dict[str, float] = defaultdict(float)
    for row in groups:
        by_reason[str(row.get("reason") or "(none)")] += row.get("open") or 0
    bars = sorted(by_reason.items(), key=lambda pair: -pair[1])[:20]
    return [
        section("Open, by reason", charts.bars(bars) if bars else ""),
        section("New each day", _stacked(tables.get("trend", ()), "reason", "arrived")),
        section("By entity, reason and error", table(groups)),
        section("Age of those that are open", table(tables.get("ages", ()))),
        section("Samples", table(tables.get("samples", ()))),
    ]


def _failovers(tables: Tables) -> list[str]:
    outages = tables.get("outages", ())
    depths: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in tables.get("backlog", ()):
        name = f"{row['path']} ({row['primary']})"
        depths[name].append((seconds(row["second"]), float(row["depth"])))
    most = sorted(depths, key=lambda name: -max(depth for _, depth in depths[name]))
    curves = {name: depths[name] for name in most[: charts.COLOURS]}
    said = f"Outages: {len(outages)}." if outages else "No entity has failed over."
    return [
        paragraph(said),
        section("Timeline", charts.timeline(lanes(outages), _STEP_COLOURS)),
        section("Messages in the backlog", charts.curves(curves, stepped=True)),
        section("Outages", table(outages)),
        section("Step by step", table(tables.get("steps", ()))),
    ]


def lanes(outages: Sequence[Row]) -> list[charts.Lane]:
    """One lane for each entity of each pair: what it went through, outage after outage."""
    by_name: dict[str, list[Row]] = defaultdict(list)
    for row in outages:
        by_name[f"{row['path']} ({row['pair']})"].append(row)
    found = []
    for name, rows in sorted(by_name.items()):
        ordered = sorted(rows, key=lambda row: seconds(row["suspected"]))
        spans = [span for row in ordered for span in _spans(name, row)]
        marks = [
            (seconds(row[column]), f"{name}: {said} at {charts.clock(seconds(row[column]), 0)}")
            for row in ordered
            for column, said in _MARKS.items()
            if row.get(column) is not None
        ]
        found.append(charts.Lane(name, spans, marks))
    return found


def _spans(name: str, row: Row) -> list[charts.Span]:
    """The steps of one outage, each until the next; the last one has no length of its own."""
    moments = {step: row.get(column) for step, column in _STARTS.items()}
    known = [(seconds(at), STEPS.index(step)) for step, at in moments.items() if at is not None]
    if row.get("cleared") is not None:
        known.append((seconds(row["cleared"]), STEPS.index("up")))
    known.sort()
    ends = [start_s for start_s, _ in known[1:]] + [known[-1][0]]
    return [
        charts.Span(
            start_s,
            end_s,
            STEPS[step],
            f"{name}: {STEPS[step]} from {charts.clock(start_s, 0)} for {end_s - start_s:.1f} s",
        )
        for (start_s, step), end_s in zip(known, ends, strict=True)
    ]


def _latency(tables: Tables) -> list[str]:
    hours = tables.get("hours", ())
    pictures = []
    for measure in sorted({str(row["measure"]) for row in hours}):
        own = [row for row in hours if row["measure"] == measure]
        title = f"{measure.replace('_', ' ')}: 95 of 100 took no longer than (ms)"
        pictures.append(section(title, _heat(own), _lines(own)))
    return [
        section("By entity", table(tables.get("entities", ()))),
        *pictures,
        section("Lock losses and redeliveries", table(tables.get("locks", ()))),
        section("By entity and hour", table(hours)),
    ]


def _heat(rows: Sequence[Row]) -> str:
    entities = sorted({str(row["entity"]) for row in rows})
    hours = sorted({row["hour"] for row in rows}, key=seconds)
    span_s = max(7200.0, seconds(hours[-1]) - seconds(hours[0])) if hours else 0.0
    values = {
        (entities.index(str(row["entity"])), hours.index(row["hour"])): float(row["p95_ms"])
        for row in rows
        if row["p95_ms"] is not None
    }
    names = [charts.clock(seconds(hour), span_s) for hour in hours]
    return charts.heat(entities, names, values) if values else ""


def _lines(rows: Sequence[Row]) -> str:
    """The same over time for the entities with most messages; with one hour there is no line."""
    messages: dict[str, int] = defaultdict(int)
    for row in rows:
        messages[str(row["entity"])] += row["messages"]
    most = sorted(messages, key=lambda name: -messages[name])[: charts.COLOURS]
    if len({row["hour"] for row in rows}) < 2:
        return ""
    return charts.curves(
        {
            name: [(seconds(r["hour"]), float(r["p95_ms"])) for r in rows if r["entity"] == name]
            for name in most
        }
    )


def _audit(tables: Tables) -> list[str]:
    verdict = tables["verdict"][0]
    clean = verdict["verdict"] == "clean"
    violations = tables.get("violations", ())
    said = "Clean" if clean else str(verdict["verdict"])
    return [
        paragraph(said, "verdict good" if clean else "verdict bad"),
        table(tables["verdict"]),
        section("What was checked", table(tables.get("checks", ()))),
        section("Violations", table(violations)),
        section("By entity", table(tables.get("entities", ()))),
        section("Moves to dead-letter queues", table(tables.get("moves", ()))),
    ]


def _stacked(rows: Sequence[Row], name: str, value: str) -> str:
    """Stacked bars by day; the series beyond the largest few become one."""
    days = sorted({str(row["day"]) for row in rows})
    sums: dict[str, float] = defaultdict(float)
    for row in rows:
        sums[_name(row[name])] += float(row[value] or 0)
    names = sorted((each for each in sums if sums[each] > 0), key=lambda each: -sums[each])
    shown = names if len(names) <= charts.COLOURS else [*names[:_SERIES_MAX], _OTHERS]
    if not shown:
        return ""
    series = {each: [0.0] * len(days) for each in shown}
    for row in rows:
        own = _name(row[name])
        if sums[own] > 0:
            place = series[own if own in series else _OTHERS]
            place[days.index(str(row["day"]))] += float(row[value] or 0)
    return charts.stacked_bars(days, series)


def _name(value: Any) -> str:
    return str(value) if value else "(none)"


def seconds(moment: Any) -> float:
    """Seconds since 1970; a time without a zone is UTC, as Spark's session gives it."""
    assert isinstance(moment, datetime)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


_PARTS: dict[str, Callable[[Tables], list[str]]] = {
    "cost": _cost,
    "dead-letters": _dead_letters,
    "failovers": _failovers,
    "latency": _latency,
    "audit": _audit,
}
