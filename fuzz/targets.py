"""What is fuzzed: each target takes any bytes and returns, whatever they are.

A target lets through only the errors that its subject is documented to raise; anything else is
a finding. Targets keep no state that one input could leave to the next.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from fuzz.broker import ManagedBroker
from fuzz.grammar import atom_entry, sql_text
from tests.store.journal_disks import MemoryDisk
from tests.unit.amqp.amqp_client import Peer
from twinbus.admin import reading
from twinbus.amqp import codec
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.sections import split_batch
from twinbus.amqp.types import Described, Int, ULong
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
from twinbus.filters import EvaluationError, FilterError, sql_action, sql_filter
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
        buried = Message(taken.buried("reason", "description", "q"))
        buried.forget_death()
    except (DecodeError, BusError):
        return
    body = taken.stored[stored.bare_start(taken.stored) :]
    head = stored.locked_head(taken.stored, 1, 1, 0, bytes(8), 1, 1)
    take_in(head + body, lambda: "id")


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
        sql_filter(text, {}).matches(view)
    with suppress(FilterError, EvaluationError):
        sql_action(text, {}).apply(view)


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
    """A message with something for a filter to look at."""
    sections: list[tuple[int, Any]] = [
        (0x73, ["id", None, "to", "label"]),
        (0x74, {"number": Int(7), "text": "blue", "flag": True, "none": None, "real": 1.5}),
        (0x75, b"body"),
    ]
    return b"".join(codec.encode(Described(ULong(code), value)) for code, value in sections)


_MESSAGE = _sample()

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
