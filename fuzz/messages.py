"""Encoded messages that fuzzers send: of every kind that an entity treats in its own way."""

from __future__ import annotations

from tests.sim.loop import EPOCH_MS
from twinbus.amqp.codec import encode
from twinbus.amqp.types import Described, Int, Symbol, Timestamp, UInt, ULong


def _message(*, session: str | None = None, **annotations: object) -> bytes:
    """Annotations, properties and a body."""
    properties = ["m", *[None] * 9, session] if session else ["m"]
    marked = {Symbol(f"x-opt-{name.replace('_', '-')}"): at for name, at in annotations.items()}
    return (
        encode(Described(ULong(0x72), marked))
        + encode(Described(ULong(0x73), properties))
        + encode(Described(ULong(0x74), {"number": Int(7)}))
        + encode(Described(ULong(0x75), b"body"))
    )


MESSAGES = (
    _message(),
    _message(session="a"),
    _message(scheduled_enqueue_time=Timestamp(EPOCH_MS + 5000)),
    _message(partition_key="a", via_partition_key="b"),
    encode(Described(ULong(0x70), [True, None, UInt(1)])) + _message(),
    encode(Described(ULong(0x75), _message())) * 2,
    encode(Described(ULong(0x77), Described(ULong(0x31), []))),
    b"\x00",
)
