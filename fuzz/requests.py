"""Requests to `$management`, chosen by bytes: mostly what an operation expects, now and then
anything at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import UUID

from fuzz.messages import MESSAGES
from twinbus.amqp.codec import encode
from twinbus.amqp.types import (
    ARRAY_OF_LONG,
    ARRAY_OF_UUID,
    AmqpArray,
    Described,
    Int,
    Symbol,
    Timestamp,
    UInt,
    ULong,
)

_CONSUMER = ("consumer", "epoch")
#: What each operation reads from its body.
OPERATIONS: dict[str, tuple[str, ...]] = {
    "peek-message": (
        "from-sequence-number", "message-count", "state", "session-id", "omit-message-body",
    ),
    "renew-lock": ("lock-tokens",),
    "renew-session-lock": ("session-id",),
    "get-session-state": ("session-id",),
    "set-session-state": ("session-id", "session-state"),
    "get-message-sessions": ("last-updated-time", "skip", "top"),
    "receive-by-sequence-number": ("sequence-numbers", "receiver-settle-mode", "session-id"),
    "update-disposition": (
        "lock-tokens", "disposition-status", "properties-to-modify", "deadletter-reason",
        "deadletter-description",
    ),
    "batch-delete-messages": ("enqueued-time-utc", "message-count", "session-id"),
    "schedule-message": ("messages",),
    "cancel-scheduled-message": ("sequence-numbers",),
    "add-rule": ("rule-name", "rule-description"),
    "remove-rule": ("rule-name",),
    "enumerate-rules": ("skip", "top"),
    "twinbus:purge": ("state", "message-count"),
    "twinbus:undefer": ("sequence-numbers",),
    "twinbus:resubmit": ("sequence-numbers",),
    "no-such-thing": ("state",),
    "twinbus:reserve": (
        *_CONSUMER, "message-count", "from-sequence-number", "to-sequence-number",
    ),
    "twinbus:attempt": (*_CONSUMER, "max-attempts"),
    "twinbus:settle-upto": (*_CONSUMER, "returned", "dead-lettered"),
    "twinbus:reservations": (),
    "twinbus:release": ("consumer",),
    "twinbus:read": ("from", "to", "byte-count", "states", "omit-message-body"),
}  # fmt: skip

_NUMBERS = (*range(12), -1, 2**31, 2**62, 2**63 - 1)
_STATES = ("active", "deferred", "scheduled", "locked", "reserved", "")
_TEXTS = ("", "a", "b", "1=1", "SET x = 1", "$Default")
_RULES: tuple[dict[str, object], ...] = (
    {"sql-filter": {"expression": "1=1"}},
    {"sql-filter": {"expression": "(("}},
    {"correlation-filter": {"label": "x", "properties": {"number": Int(7)}}},
    {"sql-filter": {"expression": "1=1"}, "sql-rule-action": {"expression": "SET number = 1/0"}},
    {},
)
# A byte from here on asks for any value, one below this leaves the value out.
_FAULTY, _LEFT_OUT = 0xF0, 0x10


def request(steps: Iterator[int], tokens: list[UUID]) -> tuple[str, bytes]:
    """An operation and its encoded body; `tokens` are those of locks, the latest last."""
    names = list(OPERATIONS)
    operation = names[next(steps, 0) % len(names)]
    if next(steps, 0) >= _FAULTY:
        return operation, bytes(steps) or b"\x40"
    body: dict[object, object] = {}
    for key in OPERATIONS[operation]:
        choice = next(steps, 0)
        if choice >= _FAULTY:
            body[key] = _anything(steps, 2)
        elif choice >= _LEFT_OUT:
            body[key] = _fitting(key, choice - _LEFT_OUT, tokens)
    return operation, encode(body)


def _one_of(values: tuple[object, ...]) -> Callable[[int], object]:
    return lambda choice: values[choice % len(values)]


def _sequence_numbers(choice: int) -> list[int]:
    """One mostly: of several it is rare that all will do."""
    if choice < 0x80:
        return [choice % 8 + 1]
    return [number for number in range(1, 8) if choice >> number - 1 & 1]


_FITTING: dict[str, Callable[[int], object]] = {
    "state": _one_of(_STATES),
    "states": lambda choice: [_STATES[choice % 6], _STATES[choice // 6 % 5]],
    "session-id": _one_of(("a", "b", "")),
    "omit-message-body": _one_of((True, False)),
    "session-state": _one_of((None, b"", b"state")),
    "last-updated-time": _one_of((Timestamp(0), Timestamp(253_402_300_800_000))),
    "enqueued-time-utc": _one_of((Timestamp(1 << 45), Timestamp(0), Timestamp(-1))),
    "sequence-numbers": lambda choice: AmqpArray(_sequence_numbers(choice), ARRAY_OF_LONG),
    "returned": _sequence_numbers,
    "dead-lettered": lambda choice: [
        {"sequence-number": number, "reason": "unfit", "description": ""}
        for number in _sequence_numbers(choice)
    ],
    "receiver-settle-mode": _one_of((UInt(1), UInt(0))),
    "disposition-status": _one_of(("completed", "abandoned", "defered", "suspended")),
    "properties-to-modify": _one_of(({"set": Int(1)}, {"x-opt-abandon-delay-ms": Int(500)}, None)),
    "messages": lambda choice: [
        {"message": MESSAGES[choice % len(MESSAGES)]} for _ in range(choice // 64)
    ],
    "consumer": _one_of(("a", "b")),
    "epoch": lambda choice: choice % 4,
    "rule-description": _one_of(_RULES),
    "rule-name": _one_of(_TEXTS),
    "deadletter-reason": _one_of(_TEXTS),
    "deadletter-description": _one_of(_TEXTS),
}


def _fitting(key: str, choice: int, tokens: list[UUID]) -> object:
    if key == "lock-tokens":
        picked = [tokens[-1 - (n - 1) % len(tokens)] for n in _sequence_numbers(choice)]
        return AmqpArray(picked, ARRAY_OF_UUID)
    return _FITTING.get(key, _one_of(_NUMBERS))(choice)


def _anything(steps: Iterator[int], depth: int) -> object:
    plain: tuple[Callable[[], object], ...] = (
        lambda: None,
        lambda: True,
        lambda: Int(next(steps, 0) - 128),
        lambda: (next(steps, 0) - 128) << 55,
        lambda: UInt(next(steps, 0)),
        lambda: Timestamp(next(steps, 0) << 40),
        lambda: _TEXTS[next(steps, 0) % len(_TEXTS)],
        lambda: Symbol("symbol"),
        lambda: bytes((next(steps, 0),) * 3),
        lambda: UUID(int=next(steps, 0)),
        lambda: 1.5 if next(steps, 0) % 2 else float("inf"),
    )
    nested: tuple[Callable[[], object], ...] = (
        lambda: [_anything(steps, depth - 1) for _ in range(next(steps, 0) % 4)],
        lambda: {_anything(steps, 0): _anything(steps, depth - 1)},
        lambda: Described(ULong(next(steps, 0)), _anything(steps, depth - 1)),
    )
    choices = plain + nested if depth else plain
    return choices[next(steps, 0) % len(choices)]()
