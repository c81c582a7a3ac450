"""The file of a pair's events: each line whole, whatever happens to file and process."""

import json
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from twinbus.pairing.event_file import KEPT, EventFile
from twinbus.pairing.events import EntityFailedOver, MessagesBacklogged, PingSent

NOON = datetime(2026, 3, 1, 12, 0, 0, 250, tzinfo=UTC)


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def test_an_event_is_a_line_with_time_names_and_fields(tmp_path: Path) -> None:
    path = tmp_path / "new" / "events.jsonl"
    with EventFile(path, "shop", "web-1", now=lambda: NOON) as file:
        file(EntityFailedOver("orders", "lost \N{SNOWMAN}\nconnection"))
        file(PingSent("orders", None))
        # Readable while it is open: every line is out as soon as it is written.
        assert lines(path) == [
            {
                "ts": "2026-03-01T12:00:00.000250Z",
                "pair": "shop",
                "client": "web-1",
                "event": "EntityFailedOver",
                "path": "orders",
                "error": "lost \N{SNOWMAN}\nconnection",
            },
            {
                "ts": "2026-03-01T12:00:00.000250Z",
                "pair": "shop",
                "client": "web-1",
                "event": "PingSent",
                "path": "orders",
                "error": None,
            },
        ]


def test_times_are_utc_whatever_the_clock_says(tmp_path: Path) -> None:
    local = NOON.astimezone(timezone(timedelta(hours=2)))
    with EventFile(tmp_path / "e", "p", "c", now=lambda: local) as file:
        file(PingSent("q", None))
    assert lines(tmp_path / "e")[0]["ts"] == "2026-03-01T12:00:00.000250Z"


def test_a_new_process_goes_on_behind_a_line_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"ts": "2026-03-01T12:00:00.000000Z", "ev')
    with EventFile(path, "p", "c") as file:
        file(PingSent("q", None))
    first, second = path.read_text().splitlines()
    assert first.endswith('"ev')
    assert json.loads(second)["event"] == "PingSent"


def test_full_files_are_renamed_and_the_oldest_goes(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    rounds = KEPT + 2
    with EventFile(path, "p", "c", full_bytes=1) as file:
        for number in range(rounds):
            file(MessagesBacklogged("orders", "b/0", number))
    names = sorted(each.name for each in tmp_path.iterdir())
    assert names == [f"events.jsonl.{number}" for number in range(1, KEPT + 1)]
    kept = [lines(tmp_path / f"events.jsonl.{number}")[0]["count"] for number in range(1, KEPT + 1)]
    assert kept == [rounds - 1 - each for each in range(KEPT)]
