"""What is fuzzed: each target takes any bytes and returns, whatever they are.

A target lets through only the errors that its subject is documented to raise; anything else is
a finding. Targets keep no state that one input could leave to the next.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from fuzz.broker import ManagedBroker
from fuzz.grammar import atom_entry, sql_text
from tests.store.journal_disks import MemoryDisk
from tests.unit.amqp.amqp_client import Peer
from twinbus.admin import reading
from twinbus.amqp import codec
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.sections import split_batch
from twinbus.amqp.types import Described, Int, Timestamp, UInt, ULong
from twinbus.core.descriptions import (
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.core.errors import BusError
from twinbus.engine import stored
from twinbus.engine.message import Message, take_in
from twinbus.engine.rules import Rule
from twinbus.engine.view import View
from twinbus.filters import EvaluationError, FilterError, Value, sql_action, sql_filter
from twinbus.journal import Journal, JournalDamaged, JournalNewer, read_segments

_JOURNAL = Path("journal")
# With this first byte the rest chooses pieces of a text (`grammar.py`); else it is the text.
_WRITTEN = b"\0"
_BETWEEN = b"\xff\xff"
REQUESTS_MAX = 8


def frames(data: bytes) -> None:
    """A peer that has opened a connection and a link each way sends anything, in two pieces."""
    peer = Peer().handshake()
    peer.attach(0, receiver=True, name="in")
    peer.attach(1, receiver=False, name="out")
    middle = data[0] % len(data) if data else 0
    peer.server.receive(data[:middle], peer.now_ms)
    if not peer.server.finished:
        peer.server.receive(data[middle:], peer.now_ms)
    peer.server.tick(peer.now_ms + 1_000_000)
    peer.server.take_output()


def hello(data: bytes) -> None:
    """A stranger sends anything at all, before or instead of a handshake."""
    peer = Peer()
    peer.server.receive(data, peer.now_ms)
    peer.server.take_output()


def values(data: bytes) -> None:
    """What can be decoded can be encoded, and is the same when decoded again."""
    try:
        value = codec.decode_whole(data)
        end = codec.skip(data, 0)
    except DecodeError:
        return
    assert end == len(data)
    again = codec.encode(codec.decode_whole(codec.encode(value)))
    assert again == codec.encode(value)


def message(data: bytes) -> None:
    """A message from outside is taken in whole or refused; what is kept can be delivered."""
    try:
        taken = take_in(data, lambda: "id")
        taken.properties()
        taken.session_id()
        taken.application_properties()
        taken.merge_properties({"added": 1})
        buried = Message(taken.buried("reason", "description", "q").stored)
        buried.revive(7, 3)
    except (DecodeError, BusError):
        return
    for rule in _RULES:
        with suppress(EvaluationError):
            if rule.matches(View(taken, _new_uuid)):
                rule.act(taken, _new_uuid)
    body = taken.stored[stored.bare_start(taken.stored) :]
    head = stored.locked_head(taken.stored, 1, 1, 0, bytes(8), 1, 1)
    take_in(head + body, lambda: "id")


def _new_uuid() -> UUID:
    return UUID(int=1)


# A rule for each thing of a message that one can look at, or take over into another.
_NAMES = (
    "number", "text", "sys.MessageId", "sys.To", "sys.Label", "sys.ReplyTo", "sys.CorrelationId",
    "sys.ContentType", "sys.SessionId", "sys.ReplyToSessionId", "sys.TimeToLive", "sys.Size",
    "sys.PartitionKey", "sys.ViaPartitionKey", "sys.ScheduledEnqueueTimeUtc",
)  # fmt: skip
_RULES = [
    Rule(RuleDescription("r", "sql", f"{name} {relation}", action=f"SET {target} = {name}"))
    for name in _NAMES
    for relation, target in (("LIKE '%' OR 1=1", "taken"), (">= 0 OR 1=1", "sys.Label"))
]


def batch(data: bytes) -> None:
    try:
        for part in split_batch(data):
            take_in(part, lambda: "id")
    except (DecodeError, BusError):
        return


def sql(data: bytes) -> None:
    """Any text is a filter or refused, an action or refused; on a message it ends."""
    text = sql_text(data[1:]) if data.startswith(_WRITTEN) else data.decode("utf-8", "replace")
    subject = take_in(_MESSAGE, lambda: "id")
    view = View(subject, lambda: None)  # type: ignore[arg-type,return-value]
    with suppress(FilterError, EvaluationError):
        sql_filter(text, _PARAMETERS).matches(view)
    with suppress(FilterError, EvaluationError):
        sql_action(text, _PARAMETERS).apply(view)


def xml(data: bytes) -> None:
    """Any body of an admin request is a description or refused."""
    if data.startswith(_WRITTEN):
        data = atom_entry(data[1:])
    try:
        name, found = reading.read_entry(data)
        if name == "QueueDescription":
            reading.read_queue(found, QueueDescription("q")).check()
        elif name == "TopicDescription":
            reading.read_topic(found, TopicDescription("t")).check()
        elif name == "SubscriptionDescription":
            reading.read_subscription(found, SubscriptionDescription("t", "s")).check()
            reading.read_default_rule(found)
        else:
            rule: RuleDescription = reading.read_rule(found, "rule")
            Rule(rule)
    except BusError:
        return


def management(data: bytes) -> None:
    """Any requests to `$management` are answered, and what is held is what the journal tells."""
    with closing(ManagedBroker()) as broker:
        broker.prepare()
        for request in data.split(_BETWEEN, REQUESTS_MAX - 1):
            broker.ask(request)
        broker.check()


def links(data: bytes) -> None:
    """Links to real entities, used in any order: the broker goes on and its counts are right."""
    with closing(ManagedBroker()) as broker:
        broker.use_links(data)
        broker.check()


def journal(data: bytes) -> None:
    """Any file is read to its last whole batch, or refused as damaged or a later version's; then
    it can go on."""
    files = {"0000000001.seg": data}
    try:
        opened = Journal.open(_JOURNAL, disk=MemoryDisk(files), segment_bytes=4096)
        opened.replay(lambda *entry: None)
    except (JournalDamaged, JournalNewer):
        return
    opened.append(b"more")
    opened.commit_now(1)
    opened.close()
    list(read_segments(_JOURNAL, disk=MemoryDisk(files)))


def _sample() -> bytes:
    """A message with something of each kind for a filter to look at."""
    properties: dict[str, object] = {
        "number": Int(7),
        "text": "blue",
        "flag": True,
        "none": None,
        "real": 1.5,
        "most": ULong(2**64 - 1),
        "least": -(2**63),
        "when": Timestamp(1 << 62),
        "id": UUID(int=1),
        "bytes": b"raw",
        "nan": float("nan"),
        "list": [1],
    }
    sections: list[tuple[int, Any]] = [
        (0x70, [True, None, UInt(1000)]),
        (0x73, ["id", None, "to", "label"]),
        (0x74, properties),
        (0x75, b"body"),
    ]
    return b"".join(codec.encode(Described(ULong(code), value)) for code, value in sections)


_MESSAGE = _sample()
_PARAMETERS: dict[str, Value] = {
    "@p": 2**70,
    "@span": timedelta(days=10**6),
    "@time": datetime.max,
}

TARGETS: dict[str, Callable[[bytes], None]] = {
    "frames": frames,
    "hello": hello,
    "codec": values,
    "message": message,
    "batch": batch,
    "sql": sql,
    "xml": xml,
    "management": management,
    "links": links,
    "journal": journal,
}
