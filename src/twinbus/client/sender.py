"""Sends encoded messages to one queue or topic, in batches and without waiting for each.

Messages go in in order and are put into transfers as large as the link takes; how much may
be under way unacknowledged is bounded. A batch is accepted whole or not at all; of a
refused batch the first message that the broker does not take alone is found and named.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from twinbus.amqp.sections import BATCH_FORMAT
from twinbus.client.connection import refusal_of
from twinbus.client.errors import SendRefused
from twinbus.client.links import Outgoing
from twinbus.client.wire import Wire
from twinbus.core import errors

WINDOW_MESSAGES: Final = 10_000
WINDOW_BYTES: Final = 8 * 1024 * 1024
# Larger transfers gain nothing, and Azure takes no batch beyond 1 MB on any tier.
BATCH_BYTES_MAX: Final = 256 * 1024
BATCH_MESSAGES_MAX: Final = 1_000
# A data section around each message: descriptor, constructor, length.
_DATA: Final = b"\x00\x53\x75\xb0"
_DATA_BYTES: Final = 8


class Sender:
    def __init__(self, wire: Wire, entity: str, window_messages: int, window_bytes: int) -> None:
        self._wire = wire
        self._entity = entity
        self._window_messages = window_messages
        self._window_bytes = window_bytes
        self._link = wire.connection.attach_sender(entity)
        wire.wait(lambda: self._link.attached, f"open {entity} for sending", self._link)
        #: The largest message that the entity takes; 0: it does not say.
        self.message_bytes_max = self._link.max_message_size
        self._batch_bytes_max = min(self.message_bytes_max or BATCH_BYTES_MAX, BATCH_BYTES_MAX)
        self._batch: list[bytes] = []
        self._batch_bytes = 0
        #: How many messages it was given, and how many of them the broker acknowledged.
        self.given = 0
        self.accepted = 0
        # Under way: the position of the first message, and the messages, of each transfer.
        self._under_way: dict[Outgoing, tuple[int, list[bytes]]] = {}
        self._messages_under_way = 0
        self._bytes_under_way = 0
        # Refused batches, or what is left of them: one by one their messages go once more.
        self._apart: list[tuple[int, list[bytes]]] = []

    def send(self, messages: Iterable[bytes]) -> None:
        """Take messages, in order; waits while the window is full.

        Raises SendRefused for a message that was refused, be it one of an earlier call.
        """
        with self._wire.lock:
            self._wire.check()
            for message in messages:
                size = _DATA_BYTES + len(message)
                if (
                    self._batch_bytes + size > self._batch_bytes_max
                    or len(self._batch) >= BATCH_MESSAGES_MAX
                ):
                    self._send_batch()
                self._batch.append(message)
                self._batch_bytes += size
                self.given += 1

    def flush(self) -> None:
        """Return once the broker has acknowledged everything; raise if it refused something."""
        with self._wire.lock:
            self._wire.check()
            self._send_batch()
            self._settle_all()

    def unacknowledged(self) -> list[tuple[int, bytes]]:
        """Position and bytes of what was given and not acknowledged, in order: what to send
        again after a failure that is retryable. Some of it may have arrived."""
        unsent = (self.given - len(self._batch), self._batch)
        pending = [*self._under_way.values(), *self._apart, unsent]
        pending.sort(key=lambda known: known[0])
        return [(first + i, m) for first, batch in pending for i, m in enumerate(batch)]

    def close(self) -> None:
        """Let go of the link; what was not flushed may be lost."""
        with self._wire.lock:
            self._wire.connection.detach(self._link)

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -----------------------------------------------------------------------------------

    def _send_batch(self) -> None:
        if not self._batch:
            return
        batch, size = self._batch, self._batch_bytes
        first = self.given - len(batch)
        self._wire.wait(lambda: self._has_room(len(batch), size), self._what, self._link)
        if self._apart:
            self._settle_all()
        self._batch, self._batch_bytes = [], 0
        self._transfer(first, batch, size)
        self._wire.exchange(0)
        self._take_outcomes()

    def _transfer(self, first: int, batch: list[bytes], size: int) -> None:
        if len(batch) == 1:
            payload, form = batch[0], 0
            if 0 < self.message_bytes_max < len(payload):
                raise SendRefused(
                    first, payload, errors.MESSAGE_TOO_LARGE.condition,
                    f"The message has {len(payload)} bytes; '{self._entity}' takes"
                    f" {self.message_bytes_max}.",
                )  # fmt: skip
        else:
            parts = [part for m in batch for part in (_DATA, len(m).to_bytes(4, "big"), m)]
            payload, form = b"".join(parts), BATCH_FORMAT
        outgoing = self._wire.connection.send(self._link, payload, form)
        self._under_way[outgoing] = (first, batch)
        self._messages_under_way += len(batch)
        self._bytes_under_way += size

    @property
    def _what(self) -> str:
        return f"acknowledge what was sent to {self._entity}"

    def _has_room(self, count: int, size: int) -> bool:
        self._take_outcomes()
        return not self._under_way or (
            self._messages_under_way + count <= self._window_messages
            and self._bytes_under_way + size <= self._window_bytes
        )

    def _settle_all(self) -> None:
        def settled() -> bool:
            self._take_outcomes()
            return not self._under_way

        self._wire.wait(settled, self._what, self._link)
        while self._apart:
            first, batch = self._apart.pop(0)
            if len(batch) > 1:
                self._apart.insert(0, (first + 1, batch[1:]))
            self._transfer(first, batch[:1], _DATA_BYTES + len(batch[0]))
            self._wire.wait(settled, self._what, self._link)

    def _take_outcomes(self) -> None:
        """Raise for a message that was refused, and for whatever was refused for the moment: that
        stays unacknowledged. Of a batch that was refused for good nobody knows which one is
        meant; its messages are to go apart."""
        outcomes = self._link.outcomes
        while outcomes:
            outgoing, outcome = outcomes.popleft()
            first, batch = self._under_way[outgoing]
            refusal = refusal_of(outcome)
            if refusal is None or not refusal.retryable:
                del self._under_way[outgoing]
                self._messages_under_way -= len(batch)
                self._bytes_under_way -= sum(map(len, batch)) + _DATA_BYTES * len(batch)
            if refusal is None:
                self.accepted += len(batch)
            elif refusal.retryable or len(batch) == 1:
                raise SendRefused(first, batch[0], refusal.condition, refusal.description)
            else:
                self._apart.append((first, batch))
