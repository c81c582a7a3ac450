"""L1: every kind of record becomes the rows that `docs/capture.md` promises."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.capture.captured import assert_complete, read_rows, read_table
from tests.capture.journals import NOON_MS, STREAM, WrittenJournal, placed, queue_put
from tests.capture.naive import Expansion, expand, time_of
from twinbus.amqp import codec
from twinbus.amqp.types import Char
from twinbus.capture import schema
from twinbus.capture.capturer import Capturer, Settings
from twinbus.capture.files import held
from twinbus.capture.rows import UnknownRecordError
from twinbus.engine import observations, records
from twinbus.engine.message import take_in
from twinbus.engine.observations import observed, packed_runs

BACKLOG = 7


@pytest.fixture
def written(tmp_path: Path) -> Iterator[WrittenJournal]:
    journal = WrittenJournal(tmp_path / "journal")
    yield journal
    journal.close()


def capture(written: WrittenJournal, root: Path) -> None:
    with held(root):
        capturer = Capturer(Settings(written.directory, root, "node"))
        capturer.drain()
        capturer.close()


def columns(*values: tuple[int, int, int]) -> bytes:
    """The columns of a SETTLED record, from (enqueued, first delivered, size) of each message."""
    times = [array("q", [value[place] for value in values]).tobytes() for place in (0, 1)]
    return b"".join([*times, array("I", [size for _, _, size in values]).tobytes()])


def message(seq: int, stored: bytes, stream: int, **given: int) -> bytes:
    head = records.PLACED_HEAD.pack(
        records.PLACED, stream, seq, NOON_MS, 0, given.get("state", 1), given.get("count", 0), 0,
        given.get("shared", 0), len(stored), records.NO_SESSION,
    )  # fmt: skip
    return head if given.get("shared") else head + stored


def wire(properties: list[object], application: dict[object, object] | None = None) -> bytes:
    """A message as a client sends it."""
    sections = b"\x00\x53\x73" + codec.encode(properties)
    if application is not None:
        sections += b"\x00\x53\x74" + codec.encode(application)
    return sections + b"\x00\x53\x75\xa0\x01x"


def every_kind() -> list[bytes]:
    dying = take_in(wire(["m-1"], {"colour": "red"}), lambda: "")
    dead = dying.buried("why", "because", "orders").stored
    backlog = take_in(wire(["m-2"] + [None] * 9 + ["s"], {"x-ms-path": "orders"}), lambda: "")
    described = json.dumps(
        {"namespace": "shop", "description": {"topic": "news", "name": "all"}}
    ).encode()
    client = b"client"
    return [
        observed(observations.STARTED, 0),
        queue_put(),
        queue_put(BACKLOG, "primary/x-servicebus-transfer/0"),
        records.entity_put(9, 3, described),
        placed(1, NOON_MS),
        placed(2, NOON_MS, stream=9 << 2 | 2),
        message(3, take_in(wire([12345]), lambda: "").stored, STREAM, state=4),
        message(3, take_in(wire([b"\x01\xff"]), lambda: "").stored, STREAM, state=0x81, count=2),
        message(4, b"\xff\xff\xff\xff\x00\xff" + bytes(12) + b"\x00\x53\x73\xc0\x03\x01\xa1\x7f",
                STREAM),
        message(1, dead, STREAM | 1, count=10),
        message(1, backlog.stored, BACKLOG << 2),
        records.settled(STREAM, 1, 2, records.COMPLETED) + columns((5, 9, 100), (6, 0, 70_000)),
        *(records.settled(STREAM, 10 + how, 1, how) for how in range(1, 9)),
        records.changed(STREAM, 3, 1, 4),
        records.changed(STREAM, 3, 3, 4),
        records.session_state_set(STREAM, b"session", b"state", 1),
        records.session_state_set(STREAM, b"session", None, 1),
        records.remembered(STREAM, 5, codec.encode("m-1")),
        records.sequence_reached(STREAM, 8),
        records.reserved(STREAM, "query", 1, 5, 0, [1, 3, 7, 7]),
        records.reservation_attempted(STREAM, "query", 1, 2, False),
        records.reservation_attempted(STREAM, "query", 1, 3, True),
        records.reserved(STREAM, "query", 1, 5, 3, []),
        records.reservation_settled(STREAM, "query", 1),
        records.reservation_released(STREAM, "query", 2, [8, 9]),
        *(observed(what, STREAM, 0, 7, 0, 900, 9, client) for what in (1, 2, 4, 5, 6, 7, 8)),
        observed(observations.DELIVERED, STREAM, 20, 3, 1, 0, 0, client,
                 array("I", [1, 65_536, 65_537]).tobytes()),
        observed(observations.LOCK_EXPIRED, STREAM, 20, 1, 1, client=client),
        observed(observations.LOCK_EXPIRED, STREAM, rest=b"session"),
        observed(observations.DUPLICATE_DROPPED, STREAM, rest=b"m-1"),
        observed(observations.FILTER_FAILED, 9 << 2, rest=b"FilterException: no: such"),
        observed(observations.PRESENT, STREAM, 0, 5, rest=packed_runs([(1, 3), (7, 2)])),
        observed(observations.PRESENT, 9 << 2, 0, 0),
        observed(observations.HEARTBEAT, 0),
        records.entity_removed(BACKLOG),
    ]  # fmt: skip


def test_l1_every_kind_of_record_becomes_its_rows(written: WrittenJournal, tmp_path: Path) -> None:
    written.commit(*every_kind())
    written.close()
    capture(written, tmp_path / "root")
    rows = read_rows(tmp_path / "root")
    # An id that cannot be read is no id; the naive reader would stumble over it.
    strange = next(row for row in rows if row.get("seq") == 4)
    assert "message_id" not in strange
    expected = expand_without(written, strange["lsn"])
    assert [row for row in rows if row is not strange] == expected
    ops = {row["op"] for row in rows}
    named = {
        *schema.ACCEPTED, *schema.TERMINAL, *schema.CHANGED, *schema.OTHER_FACTS,
        *schema.OPERATIONS, *schema.OTHER_OBSERVATIONS,
    }  # fmt: skip
    assert ops == named
    assert read_table(tmp_path / "root").schema.remove_metadata() == schema.SCHEMA


def expand_without(written: WrittenJournal, lsn: int) -> list[dict[str, object]]:
    whole = Expansion(written.directory)
    whole.entries = [entry for entry in whole.entries if entry[0] != lsn]
    return whole.rows(None)


def test_l1_the_rows_say_what_the_contract_says(written: WrittenJournal, tmp_path: Path) -> None:
    written.commit(*every_kind())
    written.close()
    capture(written, tmp_path / "root")
    rows = read_rows(tmp_path / "root")

    def only(op: str, **given: object) -> list[dict[str, object]]:
        kept = [row for row in rows if row["op"] == op and given.items() <= row.items()]
        ignored = ("lsn", "part", "parts", "ts", "op", "namespace", "stream")
        return [{k: v for k, v in row.items() if k not in ignored} for row in kept]

    assert only("enqueued", entity="orders/$DeadLetterQueue") == [
        {
            "entity": "orders/$DeadLetterQueue", "seq": 1, "count": 1, "message_id": "m-1",
            "size": 147, "delivery_count": 10, "enqueued_ts": time_of(NOON_MS), "reason": "why",
            "description": "because", "correlation": "orders",
        }
    ]  # fmt: skip
    (parked,) = only("enqueued", entity="primary/x-servicebus-transfer/0")
    assert (parked["correlation"], parked["session_id"]) == ("orders", "s")
    assert only("scheduled")[0]["message_id"] == "12345"
    assert only("replaced")[0]["message_id"] == "01ff"
    assert [row["units"] for row in only("delivered")] == [1, 1, 2]
    assert [row["seq"] for row in only("delivered")] == [20, 21, 22]
    first, second = only("completed")[:2]
    assert first["first_delivered_ts"] == time_of(9)
    assert "first_delivered_ts" not in second
    assert second["size"] == 70_000
    assert [(row.get("seq"), row["count"]) for row in only("present")] == [
        (1, 3),
        (7, 2),
        (None, 0),
    ]
    assert [row["seq"] for row in only("reserved") if "seq" in row] == [1, 2, 3, 7]


def test_a_payload_written_elsewhere_still_names_its_message(
    written: WrittenJournal, tmp_path: Path
) -> None:
    """Subscriptions share one payload; a scheduled message keeps its own when it comes due."""
    written.begin()
    first = placed(1, NOON_MS)
    payload = first[records.PLACED_HEAD_SIZE :]
    location = written.journal.append(first) + records.PLACED_HEAD_SIZE
    written.commit(message(1, payload, 8 << 2, shared=location))
    written.commit(message(2, payload, 8 << 2, shared=location))
    written.close()
    capture(written, tmp_path / "root")
    enqueued = [row for row in read_rows(tmp_path / "root") if row["op"] == "enqueued"]
    assert [row["message_id"] for row in enqueued] == ["m-1"] * 3
    # Of entity 8 nobody ever said the name.
    assert [row.get("entity") for row in enqueued] == ["orders", None, None]


def test_carried_copies_are_no_rows(written: WrittenJournal, tmp_path: Path) -> None:
    written.begin()
    written.commit(placed(1, NOON_MS), carried=(placed(1, NOON_MS), queue_put(5, "late")))
    written.commit(placed(1, NOON_MS, stream=5 << 2))
    written.close()
    capture(written, tmp_path / "root")
    assert read_rows(tmp_path / "root") == expand(written.directory)
    assert_complete(tmp_path / "root", 1, 4)
    assert read_rows(tmp_path / "root")[-1]["entity"] == "late"


def test_l1_half_a_character_of_utf_16_stops_no_capture(
    written: WrittenJournal, tmp_path: Path
) -> None:
    """AMQP has it as a char, and a property of a message may be one; Parquet's texts cannot."""
    half = Char("\ud800")
    dead = take_in(wire(["m-1"], {"DeadLetterReason": half}), lambda: "").stored
    parked = take_in(wire(["m-2"], {"x-ms-path": half}), lambda: "").stored
    written.commit(
        queue_put(),
        queue_put(BACKLOG, "primary/x-servicebus-transfer/0"),
        message(1, dead, STREAM | 1),
        message(1, parked, BACKLOG << 2),
        message(2, take_in(wire([half]), lambda: "").stored, STREAM),
        records.remembered(STREAM, 5, codec.encode(half)),
    )
    written.close()
    capture(written, tmp_path / "root")
    assert_complete(tmp_path / "root", 1, 6)
    rows = read_rows(tmp_path / "root")
    assert [row.get("reason") for row in rows if row.get("message_id") == "m-1"] == ["\ufffd"]
    assert [row.get("correlation") for row in rows if row.get("message_id") == "m-2"] == ["\ufffd"]
    assert [row.get("message_id") for row in rows[-2:]] == ["\ufffd"] * 2


def test_l1_texts_are_cut_so_that_no_sender_fills_a_column(
    written: WrittenJournal, tmp_path: Path
) -> None:
    """64K rows are columns at once, and Arrow's texts of one column have 2 GB together."""
    long = "x" * 60_000
    dead = take_in(wire([long], {"DeadLetterReason": long}), lambda: "").stored
    parked = take_in(wire([b"x" * 60_000] + [None] * 9 + [long], {"x-ms-path": long}), lambda: "")
    written.commit(
        queue_put(BACKLOG, "primary/x-servicebus-transfer/0"),
        message(1, dead, STREAM | 1),
        message(1, parked.stored, BACKLOG << 2),
        records.remembered(STREAM, 5, codec.encode(long)),
        observed(observations.DUPLICATE_DROPPED, STREAM, rest=long.encode()),
        observed(observations.FILTER_FAILED, STREAM, rest=f"Why: {long}".encode()),
    )
    written.close()
    capture(written, tmp_path / "root")
    rows = read_rows(tmp_path / "root")
    texts = ("message_id", "session_id", "reason", "description", "correlation")
    lengths = {len(str(row[name])) for row in rows for name in texts if name in row}
    assert max(lengths) == 4096
    assert len([name for row in rows for name in texts if name in row]) == 9


@pytest.mark.parametrize(
    "record",
    [b"\x63", observed(99, STREAM), records.settled(STREAM, 1, 1, 99)],
    ids=["kind", "observation", "settlement"],
)
def test_what_a_newer_version_wrote_is_refused_clearly(
    record: bytes, written: WrittenJournal, tmp_path: Path
) -> None:
    written.commit(record)
    written.close()
    with pytest.raises(UnknownRecordError, match=r"record 1 .*newer Twinbus"):
        capture(written, tmp_path / "root")
