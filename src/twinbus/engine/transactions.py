"""Transactions (E10): sends and settlements that happen together or not at all.

Nothing of a transaction touches a message before `commit`. Then everything is checked,
and only if all of it holds is it done, in one go: its records stand in one batch of the
journal, which is on disk whole or not at all.
"""

from twinbus.core import errors
from twinbus.core.errors import BusError
from twinbus.engine.consumer import Lock
from twinbus.engine.entities import Entity, Holder
from twinbus.engine.message import Message
from twinbus.engine.observer import Tally
from twinbus.engine.settlement import Settlement
from twinbus.engine.stream import Stream


class Transaction:
    def __init__(self) -> None:
        self._sends: list[tuple[Entity, Message, Tally | None]] = []
        self._settlements: list[tuple[Holder, Stream, Lock, Settlement]] = []

    def send(self, entity: Entity, message: Message, tally: Tally | None = None) -> None:
        """Send with the commit; the message counts in `tally` then."""
        entity.check(message)
        self._sends.append((entity, message, tally))

    def settle(
        self, holder: Holder, stream: Stream, lock: Lock, settlement: Settlement, now_ms: int
    ) -> None:
        settlement.check(stream, lock, now_ms)
        if any(known[2] is lock for known in self._settlements):
            raise BusError(
                errors.NOT_ALLOWED, "The message is settled in this transaction already."
            )
        self._settlements.append((holder, stream, lock, settlement))

    def commit(self, now_ms: int) -> None:
        for entity, message, _ in self._sends:
            entity.check(message)
        for _, stream, lock, settlement in self._settlements:
            settlement.check(stream, lock, now_ms)
        for entity, message, tally in self._sends:
            entity.publish(message, now_ms)
            if tally is not None:
                tally.add(message.wire_bytes)
        for holder, stream, lock, settlement in self._settlements:
            settlement.apply(holder, stream, lock, now_ms)
