"""The pages and terminal reports, from plain rows: whole, self-contained, and never fooled."""

from __future__ import annotations

import io
import re
from datetime import UTC, date, datetime, timedelta
from html.parser import HTMLParser
from typing import Any

import pytest
from rich.console import Console

from twinbus.spark.report import charts, pages, terminal
from twinbus.spark.report.page import FirstRows

HOSTILE = "<script>alert('x')</script>\"&'"
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
VOID = {"meta", "rect", "path", "circle", "br"}


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def operations(entity: str) -> list[dict[str, Any]]:
    return [
        {
            "namespace": "ns", "entity": entity, "client": HOSTILE, "kind": kind,
            "day": date(2026, 3, day), "operations": 10, "units": 10 * day, "bytes": 100,
            "price": 0.01, "currency": "USD",
        }
        for day in (1, 2)
        for kind in ("sent", "delivered")
    ]  # fmt: skip


TABLES: dict[str, dict[str, list[dict[str, Any]]]] = {
    "cost": {
        "operations": operations(HOSTILE),
        "entities": operations(HOSTILE)[:2],
        "days": operations(HOSTILE),
        "entity_days": operations(HOSTILE),
        "totals": [{"kind": "sent", "operations": 20, "price": 0.02}],
        "syphoned": [{"step": "send to the backlog", "messages": 3}],
        "idle": [{"day": date(2026, 3, 1), "predicted": 960.0, "measured": 958}],
    },
    "dead-letters": {
        "groups": [{"entity": HOSTILE, "reason": HOSTILE, "open": 3, "advice": HOSTILE}],
        "ages": [{"entity": HOSTILE, "age": "under an hour", "open": 3}],
        "trend": [{"day": date(2026, 3, 1), "reason": HOSTILE, "arrived": 3, "resolved": 0}],
        "samples": [{"message_id": HOSTILE, "description": HOSTILE}],
    },
    "failovers": {
        "outages": [
            {
                "pair": "shop", "path": HOSTILE, "number": 1, "last_success": at(0),
                "suspected": at(1), "engaged": at(2), "cleared": None, "recovered": at(20),
                "drained": at(30), "pings": 18, "first_ping": at(3), "last_ping": at(20),
                "high_water_at": None,
            }
        ],
        "backlog": [
            {"primary": "eu", "path": HOSTILE, "second": at(3 + n), "depth": 10 - abs(10 - n)}
            for n in range(20)
        ],
    },
    "latency": {
        "entities": [{"entity": HOSTILE, "measure": "to_delivery", "p95_ms": 12.5}],
        "hours": [
            {
                "entity": HOSTILE, "measure": "to_delivery", "hour": at(3600 * n), "messages": 5,
                "p95_ms": 10.0 * n,
            }
            for n in range(3)
        ],
        "locks": [{"entity": HOSTILE, "locks_lost": 1}],
    },
    "audit": {
        "verdict": [{"verdict": "1 violation", "violations": 1}],
        "checks": [{"check": "no LSN is missing", "violations": 0}],
        "violations": [{"kind": "lost", "entity": HOSTILE, "seq": 7, "text": HOSTILE}],
    },
}  # fmt: skip


class Checker(HTMLParser):
    """Sees to it that tags close, and gathers what a browser would show or fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        if tag not in VOID or (tag in ("rect", "circle", "path") and self._is_open(tag)):
            self.open.append(tag)

    def _is_open(self, tag: str) -> bool:
        raw = self.get_starttag_text() or ""
        return not raw.endswith("/>")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += data


def checked(page: str) -> Checker:
    checker = Checker()
    checker.feed(page)
    checker.close()
    assert checker.open == []
    return checker


@pytest.mark.parametrize("job", pages.TITLES)
def test_l2_a_page_is_whole_asks_nobody_and_escapes_everything(job: str) -> None:
    page = pages.render(job, TABLES[job], NOON)
    seen = checked(page)
    assert "script" not in seen.tags
    assert not {"link", "img", "iframe"} & seen.tags
    assert not [name for name, _ in seen.attributes if name in ("src", "href") or name[:2] == "on"]
    assert "url(" not in page
    assert HOSTILE in seen.text
    assert "svg" in seen.tags or job == "audit"
    assert "prefers-color-scheme:dark" in page
    assert "width=device-width" in page


@pytest.mark.parametrize("job", pages.TITLES)
def test_l2_a_capture_without_anything_still_gives_a_page(job: str) -> None:
    tables: dict[str, Any] = {"verdict": [{"verdict": "clean", "violations": 0}]}
    checked(pages.render(job, tables, NOON))
    assert terminal.render(job, tables)


@pytest.mark.parametrize("job", pages.TITLES)
def test_l2_the_terminal_shows_names_as_they_are(job: str) -> None:
    console = Console(width=250, file=io.StringIO())
    with console.capture() as shown:
        for part in terminal.render(job, TABLES[job], 200):
            console.print(part)
    assert "<script>" in shown.get()


def test_l2_the_terminal_gets_nothing_that_steers_it() -> None:
    console = Console(width=250, file=io.StringIO())
    console.print(terminal.rows_table("Letters", [{"reason": "a\x1b[2Jb"}]))
    outages = [row | {"path": "a\x1b[2Jb"} for row in TABLES["failovers"]["outages"]]
    console.print(terminal.timeline(outages, 80))
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert "\x1b" not in shown
    assert shown.count("a\ufffd[2Jb") >= 2


def test_l2_the_verdict_is_in_words_and_colour() -> None:
    assert "verdict bad" in pages.render("audit", TABLES["audit"], NOON)
    clean = {"verdict": [{"verdict": "clean", "violations": 0}]}
    page = pages.render("audit", clean, NOON)
    assert '<p class="verdict good">Clean</p>' in page


def test_l2_stacked_bars_are_as_high_as_their_numbers() -> None:
    drawn = charts.stacked_bars(["a", "b"], {"x": [1.0, 2.0], "y": [3.0, 0.0]})
    heights = [float(found) for found in re.findall(r'height="([\d.]+)"', drawn)]
    # The parts of the first bar, then the one part of the second, over the same scale.
    assert heights == pytest.approx([heights[0], 3 * heights[0], 2 * heights[0]])


def test_l2_many_series_become_a_few_and_the_others() -> None:
    rows = [{"day": "d", "kind": f"k{number:02}", "units": 100 - number} for number in range(20)]
    drawn = pages._stacked(rows, "kind", "units")
    assert drawn.count("<li>") == charts.COLOURS
    assert "others" in drawn


def test_l2_what_is_left_out_is_said_with_its_true_number() -> None:
    groups = FirstRows([{"entity": "orders", "reason": "bad", "open": 1}] * 600, 12_345)
    page = pages.render("dead-letters", {"groups": groups}, NOON)
    assert "11,845 more rows" in page
    assert "Pictures show the first 600 of the 12,345 rows of groups" in page
    assert "Pictures show" not in pages.render("dead-letters", {"groups": list(groups)}, NOON)
    assert terminal.rows_table("Letters", groups).caption == "and 12,320 more"


def test_l2_the_timeline_has_every_step_in_order() -> None:
    lane = pages.lanes(TABLES["failovers"]["outages"])[0]
    assert [(span.kind, span.end_s - span.start_s) for span in lane.spans] == [
        ("up", 1), ("suspected", 1), ("failed over", 18), ("draining", 10), ("drained", 0),
    ]  # fmt: skip
    assert [moment for moment, _ in lane.marks] == [at(3).timestamp(), at(20).timestamp()]
    drawn = terminal.timeline(TABLES["failovers"]["outages"], 100).plain
    assert "12:00:00" in drawn
    assert "12:00:30" in drawn
