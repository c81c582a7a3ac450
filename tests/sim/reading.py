"""What a broker's frames mean: numbers, conditions, answers of management nodes, deliveries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tests.sim.facts import REJECTED, Delivery, code_of, fields_of
from tests.sim.network import Frame, Wire
from twinbus.amqp.codec import decode
from twinbus.amqp.types import Described

_PROPERTIES = 0x73


class Answer(NamedTuple):
    """What a management node answered."""

    status: int
    condition: str
    body: dict[str, Any]


Said = Callable[[Answer], None]


def numbers_of(frame: Frame) -> range:
    """The deliveries that a disposition is about."""
    first = int(frame.fields[1])
    return range(first, (first if frame.fields[2] is None else int(frame.fields[2])) + 1)


def condition_of(said: Described) -> str:
    """The error condition in a state, or nothing."""
    if said.descriptor != REJECTED or not said.value or fields_of(said)[0] is None:
        return ""
    return str(fields_of(fields_of(said)[0])[0])


def sections_of(payload: bytes, last: int = 0) -> dict[int, Any]:
    """The sections of a message by their codes, up to and with the `last`; 0: all."""
    sections: dict[int, Any] = {}
    at = 0
    while at < len(payload) and last not in sections:
        section, at = decode(payload, at)
        assert isinstance(section, Described)
        sections[code_of(section)] = section.value
    return sections


def read_answer(payload: bytes) -> tuple[str, Answer]:
    """The request that is answered, and the answer."""
    sections = sections_of(payload)
    headers = sections[0x74]
    condition = str(headers.get("errorCondition") or "")
    return str(sections[_PROPERTIES][5]), Answer(
        int(headers["statusCode"]), condition, sections.get(0x77) or {}
    )


def read_transfer(frame: Frame, wire: Wire, node: str, link: str, stream: str) -> Delivery:
    delivery = read_message(frame.payload, wire, node, link, stream)
    delivery.number = int(frame.fields[1])
    delivery.tag = bytes(frame.fields[2] or b"")
    delivery.is_settled = bool(frame.fields[4])
    return delivery


def read_message(payload: bytes, wire: Wire, node: str, link: str, stream: str) -> Delivery:
    sections = sections_of(payload, _PROPERTIES)
    annotations = sections.get(0x72, {})
    header = [*sections.get(0x70, ()), None, None, None, None, None]
    properties = sections[_PROPERTIES]
    return Delivery(
        wire=wire,
        link=link,
        number=None,
        node=node,
        stream=stream,
        seq=int(annotations["x-opt-sequence-number"]),
        mid=str(properties[0]),
        session=properties[10] if len(properties) > 10 else None,
        count=int(header[4] or 0),
        until_ms=int(annotations.get("x-opt-locked-until", 0)) - wire.clock.now_ms,
        enqueued_ms=int(annotations["x-opt-enqueued-time"]) - wire.clock.now_ms,
        ttl_ms=int(header[2] or 0),
        due_ms=int(annotations.get("x-opt-scheduled-enqueue-time", 0)),
        is_settled=False,
        payload=payload,
        tag=b"",
    )
