"""Fills a broker's data directory before it starts: many entities, very many messages.

Enters: a directory, and what is to be in it. Leaves: a journal as a broker would have written
it, in seconds rather than minutes. No broker may run on the directory.
"""

from __future__ import annotations

import secrets
import time
from pathlib import Path

from twinbus.amqp import codec
from twinbus.amqp.types import Symbol
from twinbus.core import names
from twinbus.core.descriptions import QueueDescription, SubscriptionDescription, TopicDescription
from twinbus.engine.engine import Engine
from twinbus.engine.entities import Queue
from twinbus.engine.message import Message, take_in
from twinbus.engine.namespace import Namespace
from twinbus.journal import Journal

NAMESPACE = "shop"
BATCH = 5_000


def payload(number: int) -> bytes:
    """A client's message: id, subject, a property, a short JSON body."""
    properties: list[object] = [f"m-{number}", None, None, "order", None, None]
    properties.append(Symbol("application/json"))
    return b"".join(
        (
            b"\x00\x53\x73" + codec.encode(properties),
            b"\x00\x53\x74" + codec.encode({"number": number}),
            b"\x00\x53\x75" + codec.encode(f'{{"order": {number}}}'.encode()),
        )
    )


class Filling:
    def __init__(self, data_dir: Path) -> None:
        self._journal = Journal.open(data_dir / "journal", notify=lambda call: call())
        self._engine = Engine(self._journal, 0, secrets.token_bytes)
        self._journal.replay(self._engine.replay)
        self._now_ms = time.time_ns() // 1_000_000
        self._engine.finish_replay(self._now_ms)
        self._namespace: Namespace = self._engine.namespace(NAMESPACE, self._now_ms)

    def __enter__(self) -> Filling:
        return self

    def __exit__(self, *_: object) -> None:
        self._commit()
        self._journal.close()

    def _commit(self) -> None:
        self._engine.kernel.seal()
        self._journal.commit_now(self._now_ms)

    def queue(self, name: str) -> Queue:
        description = QueueDescription(name, max_size_in_megabytes=5 * 1024)
        return self._namespace.create_queue(description, self._now_ms)

    def entities(self, count: int) -> None:
        """Queues, and topics with four subscriptions each."""
        for number in range(count // 2):
            self._namespace.create_queue(QueueDescription(f"many-{number:04}"), self._now_ms)
        for number in range((count - count // 2) // 5):
            topic = f"topic-{number:04}"
            self._namespace.create_topic(TopicDescription(topic), self._now_ms)
            for name in "abcd":
                wanted = SubscriptionDescription(topic, f"sub-{name}")
                self._namespace.create_subscription(wanted, None, self._now_ms)
        self._commit()

    def messages(self, queue: Queue, count: int, *, dead: bool = False) -> None:
        stream = queue.stream(names.DEAD_LETTER_STREAM) if dead else queue.main
        for number in range(1, count + 1):
            message: Message = take_in(payload(number), lambda: "")
            stored = message.stored
            if dead:
                stored = message.buried("Broken", "The total is no number.", queue.path).stored
            stream.place(stored, self._now_ms, 0)
            if number % BATCH == 0:
                self._commit()
        self._commit()
