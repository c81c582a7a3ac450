"""What tasks of bulk work say became of each message (L4, P11), with no Spark and no broker."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from twinbus.amqp.codec import encode, encode_map
from twinbus.amqp.types import Symbol, ULong
from twinbus.client import ConnectionLost
from twinbus.core import limits
from twinbus.spark.bulk import rounds, syphon
from twinbus.spark.bulk.outbox import Outbox
from twinbus.spark.ranges import Ranges
from twinbus.spark.reading import first_at_or_after


class Primary:
    """Takes so many messages, and then the connection is lost."""

    def __init__(self, takes: int) -> None:
        self.takes = takes
        self.arrived: list[bytes] = []
        self.connections = 0

    def connect(self) -> Any:
        self.connections += 1
        return SimpleNamespace(sender=lambda target: Sender(self), close=lambda: None)


class Sender:
    accepted = 0

    def __init__(self, primary: Primary) -> None:
        self._primary = primary
        self._given: list[bytes] = []

    def send(self, messages: list[bytes]) -> None:
        self._given = list(messages)

    def flush(self) -> None:
        if len(self._primary.arrived) >= self._primary.takes:
            raise ConnectionLost("the primary went away")
        self._primary.arrived += self._given

    def close(self) -> None:
        pass


def restored(payload: bytes) -> Any:
    return SimpleNamespace(path="orders", payload=payload)


WORK = syphon.Work("", "", restored, frozenset())


def test_p11_what_the_primary_has_accepted_is_not_sent_again_when_it_goes_away() -> None:
    primary = Primary(1_000)
    with Outbox(primary.connect, 0) as outbox:
        told = syphon._move(WORK, outbox, "backlog/0", list(range(1, 1_701)), [b"x"] * 1_700)
    rows = told.to_pylist()
    counts: Counter[str] = Counter()
    for row in rows:
        counts[row["fate"]] += row["count"]
    assert counts == {"sent": len(primary.arrived), "returned": 700}
    returned = [row["sequence_number"] for row in rows if row["fate"] == "returned"]
    assert returned == list(range(1_001, 1_701))
    # It was tried once, not once for each transfer that was left.
    assert primary.connections == 1


def shown(number: int, properties: bytes) -> bytes:
    annotations = encode_map([(Symbol("x-opt-sequence-number"), encode(ULong(number)))])
    return b"\x00\x53\x72" + annotations + properties + b"\x00\x53\x75\xa0\x01x"


LATIN = b"\x00\x53\x74" + encode_map([("city", b"\xa1\x04K\xf6ln")])
BROKEN = b"\x00\x53\x73\xc0\x04\x05\xa1\x01m"


@pytest.mark.parametrize("odd", [LATIN, BROKEN])
def test_l4_a_message_that_cannot_be_read_has_a_number_all_the_same(odd: bytes) -> None:
    payloads = [shown(4, b""), shown(5, odd)]
    line: Any = SimpleNamespace(
        entity="q",
        ask_own=lambda operation, body: {"messages": payloads},
        ask=lambda operation, body: {"messages": [{"message": payloads[1]}]},
    )
    assert list(syphon._pages(line, Ranges(((4, 5),)))) == [([4, 5], payloads)]
    assert first_at_or_after(line, 1) == 5


@pytest.mark.parametrize("text", ["x" * 4_096, "\U0001f600" * 4_096])
def test_l4_a_round_of_which_all_die_ends_in_one_request_that_the_broker_takes(text: str) -> None:
    """A refusal names the destination, and a sender may have written a long one."""
    asked: list[dict[str, Any]] = []
    line: Any = SimpleNamespace(
        entity="q",
        ask_own=lambda operation, body: asked.append(body) or {},
        ask=lambda operation, body: {},
    )
    holding = rounds.Holding(line, "c")
    last = rounds.ROUND_MESSAGES
    died = [
        {"entity": "q", "sequence_number": number, "fate": rounds.DEAD_LETTERED, "count": 1}
        | {"reason": "amqp:not-found", "description": text}
        for number in range(1, last + 1)
    ]
    holding.settle(rounds.Round("q", 1, Ranges(((1, last),)), Ranges()), died)
    dead = asked[-1]["dead-lettered"]
    assert len(dead) == last
    assert dead[0]["reason"] == "amqp:not-found"
    assert len(dead[0]["description"]) >= 50
    assert last * len(encode(dead[0])) < limits.REQUEST_BYTES_MIN
    holding.settle(rounds.Round("q", 2, Ranges(((1, 1),)), Ranges()), died[:1])
    assert asked[-1]["dead-lettered"][0]["description"] == text
