"""The timeline of outages (L2), from captures of both namespaces and the pairs' events."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.jobs.conftest import kept
from tests.spark.jobs.handmade import Capture, at
from twinbus.spark.jobs import failovers
from twinbus.spark.jobs.capture_frames import read_capture
from twinbus.spark.jobs.catalogue import Tables
from twinbus.spark.jobs.failover_events import Outage, outages

BACKLOG = "primary/x-servicebus-transfer/3"


def event(name: str, second: float, client: str = "a", **fields: Any) -> dict[str, Any]:
    path = fields.pop("path", "orders")
    return {"ts": at(second).isoformat(), "pair": "p", "client": client, "event": name,
            "path": path, **fields}  # fmt: skip


EVENTS = [
    event("EntitySuspected", 10, error="timed out"),
    event("EntityFailedOver", 20, error="timed out"),
    event("PingSent", 30, error="timed out"),
    event("MessagesBacklogged", 31, queue=BACKLOG, count=3),
    event("PingSent", 40, error=None),
    event("EntityRecovered", 40.5, failed_over_ms=20_500),
    event("EntitySuspected", 70, path="invoices", error="busy"),
    event("EntityCleared", 72, path="invoices"),
]


@pytest.fixture(scope="module")
def answers(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    """Orders fail at 10 s, fail over at 20 s; five messages wait, four come home, one dies."""
    root = tmp_path_factory.mktemp("failovers")
    primary, secondary = Capture("primary"), Capture("secondary")
    primary.add("sent", 5, entity="orders", stream=4, count=7, units=7, size=70)
    primary.add("sent", 9.25, entity="orders", stream=4, count=1, units=1, size=10)
    primary.add("sent", 41, entity="orders", stream=4, count=1, units=1, size=10)
    # The secondary has an entity of that name too, which is not meant.
    secondary.add("sent", 9.75, entity="orders", stream=4, count=1, units=1, size=10)
    for seq, second in enumerate((21, 22, 22.5, 30, 30.125), start=1):
        secondary.add("enqueued", second, entity=BACKLOG, stream=8, seq=seq, size=100,
                      correlation="orders")  # fmt: skip
    secondary.add("enqueued", 25, entity=BACKLOG, stream=8, seq=6, correlation="other")
    for seq, second in ((1, 45), (2, 46), (4, 47), (5, 48.5)):
        secondary.add("completed", second, entity=BACKLOG, stream=8, seq=seq)
    secondary.add("dead_lettered", 47.5, entity=BACKLOG, stream=8, seq=3)
    events = root / "events.jsonl"
    # The last line is still being written.
    events.write_text("\n".join(json.dumps(line) for line in EVENTS) + '\n{"ts": "2026')
    for capture, name in ((primary, "one"), (secondary, "two")):
        capture.write(root / name)
    rows = read_capture(spark, str(root / "one"), str(root / "two"))
    merged = failovers.merge(failovers.partial(rows))
    return kept(failovers.report(merged, failovers.read_events(spark, str(events))))


def utc(value: datetime) -> datetime:
    return value.astimezone(UTC)


def test_an_outage_has_all_its_moments_l2(answers: Tables) -> None:
    row = answers["outages"].where("path = 'orders'").collect()[0]
    moments = {
        "last_success": 9.25, "suspected": 10, "engaged": 20, "first_ping": 30, "last_ping": 40,
        "recovered": 40.5, "drained": 48.5,
    }  # fmt: skip
    assert {name: utc(row[name]) for name in moments} == {n: at(s) for n, s in moments.items()}
    assert (row.state, row.error, row.number, row.clients) == ("drained", "timed out", 1, 1)
    assert row.not_back == 0
    assert (row.pings, row.pings_failed) == (2, 1)
    assert (row.backlogged, row.returned, row.dead_lettered, row.left) == (5, 4, 1, 0)
    assert row.discarded == 0
    assert (row.high_water, utc(row.high_water_at)) == (5, at(30))


def test_steps_have_seconds_and_messages_l2(answers: Tables) -> None:
    steps = answers["steps"].where("path = 'orders'").orderBy("position").collect()
    assert [(row.step, row.seconds, row.messages) for row in steps] == [
        ("last success", None, None), ("first failure", 0.75, None), ("engaged", 10.0, 5),
        ("first ping", 10.0, None), ("high water", 0.0, 5), ("last ping", 10.0, 2),
        ("recovered", 0.5, None), ("drained", 8.0, 4),
    ]  # fmt: skip


def test_a_suspicion_that_was_cleared_is_no_failover_l2(answers: Tables) -> None:
    row = answers["outages"].where("path = 'invoices'").collect()[0]
    assert (row.state, row.engaged, utc(row.cleared)) == ("cleared", None, at(72))
    assert row.backlogged == 0


def test_the_backlog_is_told_by_the_second_l2(answers: Tables) -> None:
    rows = answers["backlog"].where("path = 'orders'").orderBy("second").collect()
    curve = [((utc(row.second) - at(0)).total_seconds(), row.depth) for row in rows]
    assert curve == [(21, 1), (22, 3), (30, 5), (45, 4), (46, 3), (47, 1), (48, 0)]
    other = answers["backlog"].where("path = 'other'").collect()
    assert [row.depth for row in other] == [1]


def told_of(events: list[dict[str, Any]]) -> list[Outage]:
    return outages(
        line | {"ts": datetime.fromisoformat(line["ts"]), "error": line.get("error")}
        for line in events
    )


def outage(second: float, client: str, ended: float | None) -> list[dict[str, Any]]:
    """What a client tells of an outage; one that was killed tells no end."""
    begun = [
        event("EntitySuspected", second, client, error="x"),
        event("EntityFailedOver", second + 5, client, error="x"),
    ]
    return begun if ended is None else [*begun, event("EntityRecovered", ended, client)]


def test_clients_that_fail_over_together_have_one_outage() -> None:
    told = [
        event("EntitySuspected", 10, "a", error="x"),
        event("EntitySuspected", 11, "b", error="x"),
        event("EntityFailedOver", 20, "a", error="x"),
        event("EntityFailedOver", 21, "b", error="x"),
        event("EntityRecovered", 30, "a"),
        event("EntityRecovered", 35, "b"),
        event("EntitySuspected", 50, "a", error="x"),
        event("EntityFailedOver", 60, "a", error="x"),
    ]
    found = told_of(told)
    assert [(o.suspected, o.engaged, o.recovered, o.until) for o in found] == [
        (at(10), at(20), at(35), at(50)),
        (at(50), at(60), None, None),
    ]
    assert [sorted(o.clients) for o in found] == [["a", "b"], ["a"]]


@pytest.mark.parametrize("killed", ["job-17", "web"])
def test_a_client_that_was_killed_does_not_join_later_outages_l2(killed: str) -> None:
    """Its name may come back with the next process."""
    day = 86_400
    told = [*outage(0, killed, None), *outage(1, "worker", 60), *outage(day, "web", day + 60)]
    found = told_of(told)
    assert [(o.suspected, o.engaged, o.recovered, o.until) for o in found] == [
        (at(0), at(5), at(60), at(day)),
        (at(day), at(day + 5), at(day + 60), None),
    ]
    assert [(o.clients, o.not_back) for o in found] == [
        ({killed, "worker"}, {killed}),
        ({"web"}, set()),
    ]


def test_only_clients_that_were_killed_leave_an_outage_without_an_end_l2() -> None:
    """Nobody was there to see it end; a day later is another outage, minutes later is not."""
    minute, day = 60, 86_400
    told = [
        *outage(0, "a", None),
        *outage(20 * minute, "b", None),
        *outage(day, "b", day + 60),
    ]
    assert [(o.suspected, o.recovered, sorted(o.not_back)) for o in told_of(told)] == [
        (at(0), None, ["a", "b"]),
        (at(day), at(day + 60), []),
    ]


def test_a_client_that_still_pings_keeps_an_outage_open_l2() -> None:
    """One client is back, another is heard of later and is not."""
    told = [*outage(0, "a", 30), *outage(1, "b", None), event("PingSent", 61, "b", error="x")]
    assert [(o.recovered, o.not_back) for o in told_of(told)] == [(None, {"b"})]
    told.append(event("EntityRecovered", 121, "b"))
    assert [(o.recovered, o.not_back) for o in told_of(told)] == [(at(121), set())]


def test_pairs_that_share_a_secondary_have_backlogs_of_their_own_l2(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Both primaries have a queue `orders`; only what waited for one of them came home."""
    secondary = Capture("backup")
    lines = []
    for primary, stream, number, sent in (("eu", 4, 2, 5), ("us", 8, 30, 7)):
        queue = f"{primary}/x-servicebus-transfer/0"
        for seq in range(1, number + 1):
            secondary.add("enqueued", 20 + seq / 10, entity=queue, stream=stream, seq=seq,
                          correlation="orders")  # fmt: skip
        home = Capture(primary, node=primary)
        home.add("sent", sent, entity="orders", stream=4, units=1, size=10)
        home.write(tmp_path / primary)
        told = [*outage(10, "web", 40), event("MessagesBacklogged", 21, "web", queue=queue)]
        lines += [line | {"pair": f"shop {primary}"} for line in told]
    for seq in (1, 2):
        secondary.add("completed", 50, entity="eu/x-servicebus-transfer/0", stream=4, seq=seq)
    secondary.write(tmp_path / "backup")
    events = tmp_path / "events.jsonl"
    events.write_text("\n".join(map(json.dumps, lines)) + "\n")
    rows = read_capture(spark, *(str(tmp_path / name) for name in ("eu", "us", "backup")))
    merged = failovers.merge(failovers.partial(rows))
    tables = failovers.report(merged, failovers.read_events(spark, str(events)))
    columns = ("pair", "state", "backlogged", "returned", "left", "high_water")
    found = tables["outages"].collect()
    assert [tuple(row[name] for name in columns) for row in found] == [
        ("shop eu", "drained", 2, 2, 0, 2),
        ("shop us", "draining", 30, 0, 30, 30),
    ]
    assert [utc(row.last_success) for row in found] == [at(5), at(7)]
    ends = {row.primary: row.depth for row in tables["backlog"].collect()}
    assert ends == {"eu": 0, "us": 30}


def test_a_backlog_that_was_thrown_away_did_not_come_home_l2(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Of six messages one comes home, one dies, one expires, two are purged; the last goes with
    its queue."""
    secondary = Capture("secondary")
    for seq in range(1, 7):
        secondary.add("enqueued", 20 + seq, entity=BACKLOG, stream=8, seq=seq, correlation="orders")
    ends = ("completed", "dead_lettered", "expired", "purged", "purged")
    for seq, op in enumerate(ends, start=1):
        secondary.add(op, 50 + seq, entity=BACKLOG, stream=8, seq=seq)
    secondary.add("entity_removed", 60, entity=BACKLOG, stream=8)
    secondary.write(tmp_path / "secondary")
    events = tmp_path / "events.jsonl"
    told = [*outage(10, "a", 40), event("MessagesBacklogged", 31, queue=BACKLOG, count=6)]
    events.write_text("\n".join(map(json.dumps, told)) + "\n")
    rows = read_capture(spark, str(tmp_path / "secondary"))
    merged = failovers.merge(failovers.partial(rows))
    tables = failovers.report(merged, failovers.read_events(spark, str(events)))
    (row,) = tables["outages"].collect()
    assert (row.backlogged, row.returned, row.dead_lettered, row.discarded) == (6, 1, 1, 4)
    assert (row.left, row.state, row.drained) == (0, "discarded", None)
    assert sum(point.discarded for point in tables["backlog"].collect()) == 4
