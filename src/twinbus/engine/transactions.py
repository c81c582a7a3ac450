"""Transactions (E10): sends and settlements that happen together or not at all.

Nothing of a transaction touches a message before `commit`. Then everything is checked,
and only if all of it holds is it done, in one go: its records stand in one batch of the
journal, which is on disk whole or not at all.
"""

from twinbus.core import errors, limits
from twinbus.core.errors import BusError
from twinbus.engine.consumer import Lock
from twinbus.engine.entities import Entity, Holder
from twinbus.engine.message import Message
from twinbus.engine.observer import Tally
from twinbus.engine.settlement import Settlement
from twinbus.engine.stream import Stream


class Transaction:
    def __init__(self, controller: object = None) -> None:
        #: Who declared it, and will discharge it.
        self.controller = controller
        self._sends: list[tuple[Entity, Message, Tally | None]] = []
        self._settlements: dict[Lock, tuple[Holder, Stream, Settlement]] = {}
        #: What the messages weigh that the commit will write.
        self.wire_bytes = 0
        #: Why something was refused of which the client was not told; the commit is refused for it.
        self.refusal: BusError | None = None
        #: What is said of each settlement once it is committed; the bridge's own.
        self.answers: dict[Lock, bytes] = {}

    def send(self, entity: Entity, message: Message, tally: Tally | None = None) -> None:
        """Send with the commit; the message counts in `tally` then."""
        self.check(entity, [message])
        self.add(entity, message, tally)

    def check(self, entity: Entity, messages: list[Message]) -> None:
        """Refuse what cannot be sent, all of a batch or none of it (S6)."""
        if len(self._sends) + len(messages) > limits.TRANSACTION_MESSAGES_MAX:
            raise BusError(
                errors.QUOTA_EXCEEDED,
                f"Cannot send more than {limits.TRANSACTION_MESSAGES_MAX} messages in a single"
                " transaction.",
            )
        for message in messages:
            entity.check(message)

    def add(self, entity: Entity, message: Message, tally: Tally | None) -> None:
        """Take a checked message."""
        self._sends.append((entity, message, tally))
        self.wire_bytes += message.wire_bytes

    def settle(
        self, holder: Holder, stream: Stream, lock: Lock, settlement: Settlement, now_ms: int
    ) -> None:
        settlement.check(stream, lock, now_ms)
        if lock in self._settlements:
            raise BusError(
                errors.NOT_ALLOWED, "The message is settled in this transaction already."
            )
        self._settlements[lock] = (holder, stream, settlement)

    @property
    def locks(self) -> list[Lock]:
        """Of what is settled."""
        return list(self._settlements)

    def commit(self, now_ms: int) -> None:
        if self.refusal is not None:
            raise self.refusal
        self._check_sends()
        for lock, (_, stream, settlement) in self._settlements.items():
            settlement.check(stream, lock, now_ms)
        for entity, message, tally in self._sends:
            entity.publish(message, now_ms)
            if tally is not None:
                tally.add(message.wire_bytes)
        for lock, (holder, stream, settlement) in self._settlements.items():
            settlement.apply(holder, stream, lock, now_ms)

    def _check_sends(self) -> None:
        """Refuse all when one is refused now, or when they do not fit together (E11)."""
        coming: dict[Entity, int] = {}
        for entity, message, _ in self._sends:
            entity.check(message)
            coming_bytes = coming.get(entity, 0)
            _check_room(entity, coming_bytes)
            coming[entity] = coming_bytes + len(message.stored)


class Transactions:
    """The open transactions of a connection."""

    def __init__(self) -> None:
        self.open: dict[bytes, Transaction] = {}
        #: What the messages of all of them weigh that their commits will write.
        self.wire_bytes = 0
        #: What is settled in all of them: the transaction by the lock.
        self.settling: dict[Lock, bytes] = {}

    def declare(self, txn_id: bytes, controller: object = None) -> None:
        if len(self.open) >= limits.TRANSACTIONS_MAX:
            raise BusError(
                errors.QUOTA_EXCEEDED,
                f"A connection may have {limits.TRANSACTIONS_MAX} open transactions.",
            )
        self.open[txn_id] = Transaction(controller)

    def find(self, txn_id: bytes) -> Transaction:
        transaction = self.open.get(txn_id)
        if transaction is None:
            raise BusError(errors.TRANSACTION_UNKNOWN, "There is no such open transaction.")
        return transaction

    def check(self, txn_id: bytes, entity: Entity, messages: list[Message]) -> None:
        """Refuse what cannot be sent in a transaction, all of a batch or none of it (S6)."""
        self.find(txn_id).check(entity, messages)
        self._check_bytes(sum([message.wire_bytes for message in messages]))

    def add(self, txn_id: bytes, entity: Entity, message: Message, tally: Tally | None) -> None:
        """Take a checked message."""
        self.open[txn_id].add(entity, message, tally)
        self.wire_bytes += message.wire_bytes

    def settle(
        self, txn_id: bytes, holder: Holder, stream: Stream, lock: Lock, settlement: Settlement,
        now_ms: int,
    ) -> None:  # fmt: skip
        transaction = self.find(txn_id)
        if self.settling.get(lock, txn_id) != txn_id:
            raise BusError(errors.NOT_ALLOWED, "The message is settled in another transaction.")
        size = 0
        if settlement.writes_anew:
            # Like what is sent, and all that one commits goes into one batch.
            stream.check_lock(lock, now_ms)
            size = stream.size(lock.seq)
            self._check_bytes(size)
        transaction.settle(holder, stream, lock, settlement, now_ms)
        self.settling[lock] = txn_id
        transaction.wire_bytes += size
        self.wire_bytes += size

    def _check_bytes(self, coming_bytes: int) -> None:
        if self.wire_bytes + coming_bytes > limits.TRANSACTION_BYTES_MAX:
            raise BusError(
                errors.QUOTA_EXCEEDED,
                "What the open transactions of a connection send, dead-letter or change may have"
                f" {limits.TRANSACTION_BYTES_MAX} bytes together: commit before you do more.",
            )

    def refuse(self, txn_id: bytes, error: BusError) -> None:
        """Something was refused and nobody told: a commit, which promises it, is refused too."""
        transaction = self.open.get(txn_id)
        if transaction is not None:
            transaction.refusal = error

    def end(self, txn_id: bytes) -> Transaction:
        transaction = self.find(txn_id)
        del self.open[txn_id]
        self.wire_bytes -= transaction.wire_bytes
        for lock in transaction.locks:
            del self.settling[lock]
        return transaction

    def roll_back(self, controller: object) -> None:
        """Who declared them is gone: nobody can be told what a commit came to."""
        declared = [i for i, known in self.open.items() if known.controller is controller]
        for txn_id in declared:
            self.end(txn_id)


def _check_room(entity: Entity, coming_bytes: int) -> None:
    """Refuse one more message for an entity to which so many bytes are sent before it."""
    # What is forwarded takes no room there.
    if entity.forward_to is None and entity.size_bytes() + coming_bytes >= entity.bytes_max:
        raise BusError(
            errors.QUOTA_EXCEEDED,
            f"The transaction sends more to '{entity.path}' than it has room for: that holds"
            f" {entity.size_bytes()} of at most {entity.bytes_max} bytes. Nothing of the"
            " transaction was done. Receive from it, or raise MaxSizeInMegabytes.",
        )
