"""What the model's messages hold, as bytes and read back, and the rules it knows.

A Content becomes the AMQP message that a client would send; the engine's stored form becomes a
Content again. A rule is there twice: as the description that the engine compiles and as two
Python functions that say the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from twinbus.amqp import codec
from twinbus.amqp.sections import DATA
from twinbus.amqp.types import Symbol, Timestamp, UInt
from twinbus.core.descriptions import RuleDescription
from twinbus.engine import stored as form
from twinbus.engine.message import MESSAGE_ID, SESSION_ID, Message

Properties = dict[str, object]

_REASON = "DeadLetterReason"
_DESCRIPTION = "DeadLetterErrorDescription"
_SOURCE = "x-opt-deadletter-source"
_RESUBMISSION = "x-opt-resubmission"
_SCHEDULED = "x-opt-scheduled-enqueue-time"
# For these the broker chooses the words of the description itself.
_BROKERS_REASONS = (
    "FilterException", "HeaderSizeExceeded", "MaxBatchFailuresExceeded", "MaxDeliveryCountExceeded",
    "MaxTransferHopCountExceeded", "MessagingEntityDisabled", "MessagingEntityNotFound",
    "ForwardingFailed", "QuotaExceeded", "RuleActionException", "Session id is null.",
    "TTLExpiredException",
)  # fmt: skip


@dataclass(frozen=True)
class Content:
    body: bytes
    message_id: str
    session_id: str | None = None
    ttl_ms: int | None = None
    #: Never changed in place: contents are shared.
    properties: Properties = field(default_factory=dict)
    source: str | None = None
    #: Which dead letter it was, if it was put back (E7).
    resubmission: str = ""

    def with_properties(self, updates: dict[str, object]) -> Content:
        return replace(self, properties={**self.properties, **updates})

    def buried(
        self, reason: str | None, description: str | None, properties: dict[str, object],
        source: str,
    ) -> Content:  # fmt: skip
        updates = dict(properties)
        updates |= {} if reason is None else {_REASON: reason}
        updates |= {} if description is None else {_DESCRIPTION: description}
        return replace(self.with_properties(updates), source=source)

    def revived(self, resubmission: str) -> Content:
        kept = {k: v for k, v in self.properties.items() if k not in (_REASON, _DESCRIPTION)}
        return replace(self, properties=kept, source=None, resubmission=resubmission)


def payload_of(content: Content, due_ms: int = 0) -> bytes:
    """The message as a client sends it."""
    sections: list[tuple[int, object]] = []
    if content.ttl_ms is not None:
        sections.append((0x70, [None, None, UInt(content.ttl_ms)]))
    if due_ms:
        sections.append((0x72, {Symbol(_SCHEDULED): Timestamp(due_ms)}))
    fields: list[object] = [content.message_id] + [None] * 9 + [content.session_id]
    sections.append((0x73, fields))
    if content.properties:
        sections.append((0x74, dict(content.properties)))
    sections.append((0x75, content.body))
    return b"".join(bytes((0, 0x53, code)) + codec.encode(value) for code, value in sections)


@lru_cache(maxsize=512)
def content_of(stored: bytes) -> Content:
    """The engine's stored form, read back."""
    message = Message(stored)
    fields = message.properties()
    message_id, session_id = fields[MESSAGE_ID], fields[SESSION_ID]
    assert isinstance(message_id, str)
    assert session_id is None or isinstance(session_id, str)
    properties: dict[str, Any] = {
        str(key): codec.decode_whole(raw) for key, raw in message.application_properties()
    }
    if properties.get(_REASON) in _BROKERS_REASONS:
        assert properties[_DESCRIPTION]
        properties[_DESCRIPTION] = "*"
    source = form.annotation(stored, _SOURCE)
    assert source is None or isinstance(source, str)
    resubmission = form.annotation(stored, _RESUBMISSION) or ""
    assert isinstance(resubmission, str)
    start, end = message.section(DATA)
    body = codec.decode_whole(stored[start + 3 : end])
    assert isinstance(body, bytes)
    ttl_ms = form.ttl_of(stored)
    return Content(
        body, message_id, session_id, None if ttl_ms == form.NO_TTL else ttl_ms,
        properties, source, resubmission,
    )  # fmt: skip


class FilterFails(Exception):
    def __init__(self, kind: str) -> None:
        self.kind = kind


@dataclass(frozen=True)
class NaiveRule:
    description: RuleDescription
    matches: Callable[[Content], bool]
    act: Callable[[Content], Content] = lambda content: content


def _divides(content: Content) -> bool:
    n = content.properties.get("n")
    if n == 0:
        raise FilterFails("FilterException")
    return isinstance(n, int) and 10 / n > 2


def _mark(content: Content) -> Content:
    kept = {k: v for k, v in content.properties.items() if k not in ("color", "mark")}
    return replace(content, properties={**kept, "mark": "seen"})


def _act_divides(content: Content) -> Content:
    n = content.properties.get("n")
    if n == 0:
        raise FilterFails("RuleActionException")
    share = None if n is None else 10 // int(str(n))
    return content.with_properties({"share": share})


def _has(name: str, value: object) -> Callable[[Content], bool]:
    return lambda content: content.properties.get(name) == value


RULES = {
    rule.description.name: rule
    for rule in (
        NaiveRule(RuleDescription("$Default"), lambda content: True),
        NaiveRule(RuleDescription("nothing", "false"), lambda content: False),
        NaiveRule(RuleDescription("red", "sql", "color = 'red'"), _has("color", "red")),
        NaiveRule(
            RuleDescription("blue", "correlation", properties={"color": ("string", "blue")}),
            _has("color", "blue"),
        ),
        NaiveRule(
            RuleDescription("one", "correlation", correlation={"message_id": "id-1"}),
            lambda content: content.message_id == "id-1",
        ),
        NaiveRule(RuleDescription("divides", "sql", "10 / n > 2"), _divides),
        NaiveRule(
            RuleDescription(
                "mark", "sql", "color IS NOT NULL", action="SET mark = 'seen'; REMOVE color"
            ),
            lambda content: "color" in content.properties,
            _mark,
        ),
        NaiveRule(
            RuleDescription("share", action="SET share = 10 / n"),
            lambda content: True,
            _act_divides,
        ),
    )
}
