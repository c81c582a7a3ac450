"""This broker's own `$management` operations for a bulk reader: reserve, try, settle, release,
and read what is set aside. `docs/differences.md` shows their bodies.

The body of a request goes in, the body of the answer comes out; an empty one says 'none'.
"""

from collections.abc import Callable
from typing import Any

from twinbus.amqp.types import Int, Timestamp
from twinbus.core import limits
from twinbus.engine import browsing, parting, reserving
from twinbus.engine.entities import Holder
from twinbus.engine.index import NEVER
from twinbus.engine.reservations import Reservation, Reserver
from twinbus.engine.stream import Stream

Body = dict[str, Any]


def _reserve(holder: Holder, stream: Stream, body: Body, now_ms: int) -> Body:
    found = reserving.reserve(
        holder, stream, _consumer(body), _number(body, "epoch", 1),
        _number(body, "message-count", 1), now_ms,
        _number({"from-sequence-number": 1} | body, "from-sequence-number", 0),
        _number({"to-sequence-number": NEVER} | body, "to-sequence-number", 0),
    )  # fmt: skip
    if found is None:
        return {}
    return {
        "ranges": found.ranges,
        "message-count": found.message_count(),
        "byte-count": found.byte_count(stream.index),
        "attempts": Int(found.attempts),
    }


def _attempt(holder: Holder, stream: Stream, body: Body, now_ms: int) -> Body:
    found = reserving.attempt(
        holder, stream, _consumer(body), _number(body, "epoch", 1),
        _number(body, "max-attempts", 0), now_ms,
    )  # fmt: skip
    return {"ranges": found.ranges, "attempts": Int(found.attempts), "buried": found.is_buried}


def _settle_upto(holder: Holder, stream: Stream, body: Body, now_ms: int) -> Body:
    consumer, epoch = _consumer(body), _number(body, "epoch", 0)
    returned = [int(seq) for seq in body.get("returned") or ()]
    dead = {
        int(each["sequence-number"]): (str(each["reason"]), str(each["description"]))
        for each in body.get("dead-lettered") or ()
    }
    if returned or dead:
        parting.part(holder, stream, consumer, epoch, returned, dead, now_ms)
    return {"message-count": reserving.settle_upto(stream, consumer, epoch)}


def _release(holder: Holder, stream: Stream, body: Body, now_ms: int) -> Body:
    return {"message-count": reserving.release(holder, stream, _consumer(body), now_ms)}


def _list(holder: Holder, stream: Stream, body: Body, now_ms: int) -> Body:
    table = stream.reservations
    known = [] if table is None else list(table.reservers.values())
    return {"reservations": [_reserver(stream, reserver) for reserver in known]}


def _read(holder: Holder, stream: Stream, body: Body, now_ms: int) -> Body:
    states = browsing.ALL_STATES
    if body.get("states") is not None:
        states = b"".join(browsing.STATES[_state(name)] for name in body["states"])
    messages = browsing.read(
        stream, _number(body, "from", 0), _number(body, "to", 0),
        min(_number(body, "byte-count", 1), limits.READ_BYTES_MAX), states,
        bool(body.get("omit-message-body")),
    )  # fmt: skip
    return {"messages": messages} if messages else {}


Operation = Callable[[Holder, Stream, Body, int], Body]
#: All of them need the right to listen.
OPERATIONS: dict[str, Operation] = {
    "twinbus:reserve": _reserve,
    "twinbus:attempt": _attempt,
    "twinbus:settle-upto": _settle_upto,
    "twinbus:release": _release,
    "twinbus:reservations": _list,
    "twinbus:read": _read,
}


def _reserver(stream: Stream, reserver: Reserver) -> Body:
    return {
        "consumer": reserver.name,
        "settled-epoch": reserver.settled_epoch,
        "epochs": [_epoch(stream, reservation) for reservation in reserver.outstanding()],
    }


def _epoch(stream: Stream, reservation: Reservation) -> Body:
    return {
        "epoch": reservation.epoch,
        "message-count": reservation.message_count(),
        "byte-count": reservation.byte_count(stream.index),
        "attempts": Int(reservation.attempts),
        "reserved-at": Timestamp(reservation.at_ms),
        "ranges": reservation.ranges,
    }


def _consumer(body: Body) -> str:
    consumer = body["consumer"]
    if not isinstance(consumer, str) or not consumer:
        raise ValueError("consumer must be a name")
    return str(consumer)


def _number(body: Body, key: str, least: int) -> int:
    number = body[key]
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        raise ValueError(f"{key} must be a whole number, {least} or more, not {number!r}")
    return int(number)


def _state(name: object) -> str:
    if name not in browsing.STATES:
        raise ValueError(f"'{name}' is none of {', '.join(browsing.STATES)}")
    return str(name)
