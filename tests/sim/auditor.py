"""Knows what was asked and what was promised, and says when the two do not agree.

Everything a broker says comes in when it is said, with the virtual time; at rest the whole
state of a node is compared with what may be there. It changes nothing: a violation is a line
of text, and a run with one has failed. Every event also goes into the trace, whose hash tells
whether two runs were the same.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from twinbus.amqp.types import Described

if TYPE_CHECKING:
    from tests.sim.network import Wire
    from tests.sim.node import Live, Node

ACCEPTED, REJECTED, RELEASED, MODIFIED, TRANSACTIONAL = 0x24, 0x25, 0x26, 0x27, 0x34
COMPLETE, DEAD_LETTER, ABANDON, DEFER, IN_TRANSACTION = (
    "complete", "dead-letter", "abandon", "defer", "in transaction",
)  # fmt: skip
#: Settlements after which a message is no longer where it was.
REMOVES = (COMPLETE, DEAD_LETTER)
# The one refusal that leaves open whether the message was stored.
IN_DOUBT = "amqp:internal-error"


@dataclass(eq=False)
class Send:
    """One message on one attempt to send it; `mid` is its message id, used for nothing else."""

    mid: str
    node: str
    entity: str
    session: str | None = None
    number: int = 0
    #: To a topic: the subscriptions that must get a copy each, and no other.
    subscriptions: tuple[str, ...] = ()
    #: The transaction it is part of.
    txn: Txn | None = None
    #: Several attempts of a pair may carry the same message: what one broker sees twice.
    may_repeat: bool = False
    is_ping: bool = False
    #: It has a time to live, so that it may be gone without anybody's doing.
    expires: bool = False
    accepted: bool = False
    refused: bool = False
    #: Places in the order of events.
    asked_at: int = 0
    accepted_at: int = 0


@dataclass(eq=False)
class Txn(Send):
    """The end of a transaction: its sends, and what it completes."""

    sends: list[Send] = field(default_factory=list)
    completes: Delivery | None = None
    rolls_back: bool = False


@dataclass(eq=False)
class Delivery:
    wire: Wire
    link: str
    number: int
    node: str
    stream: str
    seq: int
    mid: str
    session: str | None
    count: int
    until_ms: int
    #: When its time to live is over; 0: never.
    expires_ms: int
    is_settled: bool
    payload: bytes
    token: UUID
    asked: str = ""
    asked_reached_ms: int = 0


@dataclass(eq=False)
class Copy:
    """One message in one stream, as its sequence number names it."""

    mid: str
    #: Who holds its lock, as far as the broker has said.
    lock: Delivery | None = None
    #: Who asked for its removal, in a request that reached the broker and was not refused.
    removal_asked: set[Delivery] = field(default_factory=set)
    #: The broker has said that it is removed.
    removed: bool = False
    is_deleted_on_receipt: bool = False


class Auditor:
    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self.violations: list[str] = []
        self.sends: dict[str, Send] = {}
        self.transactions: list[Txn] = []
        self.copies: dict[tuple[str, str, int], Copy] = {}
        self.counts: Counter[str] = Counter()
        self._hash = hashlib.blake2b(digest_size=8)
        #: Session streams: the numbers that were delivered of each session.
        self._seen: dict[tuple[str, str, str], set[int]] = {}
        self.trace: list[str] | None = None

    @property
    def trace_hash(self) -> str:
        return self._hash.hexdigest()

    def note(self, kind: str, *what: object) -> None:
        line = f"{self._now_ms()} {kind} {' '.join(map(str, what))}"
        self.counts[kind] += 1
        self._hash.update(line.encode() + b"\n")
        if self.trace is not None:
            self.trace.append(line)

    def violation(self, rule: str, what: str) -> None:
        self.note("VIOLATION", rule, what)
        self.violations.append(f"{self._now_ms()} {rule}: {what}")

    # --- sends ------------------------------------------------------------------------

    def sending(self, send: Send) -> None:
        self.note("send", send.node, send.entity, send.mid)
        send.asked_at = self.counts.total()
        if isinstance(send, Txn):
            self.transactions.append(send)
            if send.completes is not None and not send.rolls_back:
                self._copy(send.completes).removal_asked.add(send.completes)
        else:
            self.sends[f"{send.node}/{send.mid}"] = send

    def send_again(self, node: str, entity: str, mid: str) -> Send:
        """A message of the pair, which several attempts may carry to the same broker."""
        known = self.sends.get(f"{node}/{mid}")
        if known is None:
            known = Send(mid, node, entity, may_repeat=True)
            self.sending(known)
        return known

    def answered(self, send: Send, kind: int, condition: str) -> None:
        self.note("answered", send.node, send.entity, send.mid, kind, condition)
        if kind == ACCEPTED:
            send.accepted = True
            send.accepted_at = self.counts.total()
        elif condition != IN_DOUBT:
            send.refused = True
        if isinstance(send, Txn) and send.completes is not None and not send.rolls_back:
            copy = self._copy(send.completes)
            if send.accepted:
                copy.removed = True
                copy.lock = None
            elif send.refused:
                copy.removal_asked.discard(send.completes)

    # --- deliveries and locks ---------------------------------------------------------

    def delivered(self, delivery: Delivery) -> None:
        where = f"{delivery.node} {delivery.stream} {delivery.seq} {delivery.mid}"
        self.note("delivered", where, delivery.count, delivery.wire.name)
        send = self.sends.get(f"{delivery.node}/{delivery.mid}")
        if send is None:
            self.violation("R10", f"a message that nobody sent was delivered: {where}")
        elif send.is_ping:
            self.violation("P10", f"a ping was delivered: {where}")
        key = (delivery.node, delivery.stream, delivery.seq)
        copy = self.copies.setdefault(key, Copy(delivery.mid))
        if copy.mid != delivery.mid:
            self.violation("E4", f"a sequence number was given twice: {where}, {copy.mid}")
        if copy.removed:
            self.violation("R4", f"a settled message came back: {where}")
        if self._is_locked(copy):
            self.violation("R2", f"a second lock on a locked message: {where}")
        if delivery.expires_ms and self._now_ms() >= delivery.expires_ms:
            self.violation("D5", f"an expired message was delivered: {where}")
        if delivery.is_settled:
            copy.is_deleted_on_receipt = True
        copy.lock = delivery
        if send is not None and delivery.session is not None:
            self._check_order(delivery, send)

    def _is_locked(self, copy: Copy) -> bool:
        return copy.lock is not None and self._now_ms() < copy.lock.until_ms

    def _check_order(self, delivery: Delivery, send: Send) -> None:
        """A session's messages are first delivered in the order in which they were accepted (E6).

        Only what was accepted before the next was sent has an order: bytes that a sender gave
        up with a broken connection may still arrive later.
        """
        session = delivery.session
        assert session is not None
        seen = self._seen.setdefault((delivery.node, delivery.stream, session), set())
        for other in self.sends.values():
            if (
                other.session == session
                and other.entity == send.entity
                and other.node == send.node
                and other.accepted
                and other.accepted_at < send.asked_at
                and other.number not in seen
            ):
                self.violation("E6", f"{delivery.mid} overtook {other.mid} of its session")
        seen.add(send.number)

    def settling(self, delivery: Delivery, outcome: Described) -> None:
        """A client settles. Whatever it wants, its hold on the message ends with it."""
        delivery.asked = _meaning(outcome)
        self.note("settling", delivery.stream, delivery.seq, delivery.mid, delivery.asked)

    def settling_reached(self, delivery: Delivery) -> None:
        """The request is at the broker, which may do at once what it will answer later."""
        delivery.asked_reached_ms = self._now_ms()
        copy = self._copy(delivery)
        if delivery.asked in REMOVES:
            copy.removal_asked.add(delivery)
        if copy.lock is delivery and delivery.asked != IN_TRANSACTION:
            copy.lock = None

    def settled(self, delivery: Delivery, kind: int, condition: str) -> None:
        if delivery.asked == IN_TRANSACTION or kind == TRANSACTIONAL:
            return
        self.note("settled", delivery.stream, delivery.seq, delivery.mid, kind, condition)
        copy = self._copy(delivery)
        if condition:
            if condition != IN_DOUBT:
                copy.removal_asked.discard(delivery)
            return
        where = f"{delivery.node} {delivery.stream} {delivery.seq} {delivery.mid}"
        if delivery.asked_reached_ms >= delivery.until_ms:
            self.violation("R5", f"a settlement counted though its lock was over: {where}")
        if delivery.asked in REMOVES:
            if self._is_locked(copy):
                self.violation("R5", f"a settlement counted though another has the lock: {where}")
            if copy.removed:
                self.violation("R5", f"a message was settled twice: {where}")
            copy.removed = True

    def renewed(self, delivery: Delivery, until_ms: int) -> None:
        """The broker has prolonged a lock (R6)."""
        self.note("renewed", delivery.stream, delivery.seq, delivery.mid, until_ms)
        if until_ms < delivery.until_ms:
            self.violation("R6", f"a renewal made the lock on {delivery.mid} shorter")
        delivery.until_ms = until_ms

    def leaving(self, wire: Wire, link: str) -> None:
        """A link ends. Locks outlive it, except those of a session (E6)."""
        for copy in self.copies.values():
            lock = copy.lock
            if lock is not None and lock.wire is wire and lock.link == link and lock.session:
                copy.lock = None

    def connection_lost(self, wire: Wire) -> None:
        """The broker has lost a connection, and with it every lock it gave out there (R7)."""
        self.note("lost", wire.name)
        for copy in self.copies.values():
            if copy.lock is not None and copy.lock.wire is wire:
                copy.lock = None

    def locks_dropped(self, node: str, stream: str) -> None:
        """The entity was changed (R7)."""
        for (where, name, _), copy in self.copies.items():
            if (where, name) == (node, stream):
                copy.lock = None

    def _copy(self, delivery: Delivery) -> Copy:
        return self.copies[delivery.node, delivery.stream, delivery.seq]

    # --- at rest ----------------------------------------------------------------------

    def check_node(self, node: Node) -> None:
        """Compare what a node holds with what it promised, and with its own journal."""
        live = node.live()
        if live != node.replayed():
            self.violation("counts", f"the journal of {node.name} tells another story")
        for (stream, seq), (_, _, mid) in live.items():
            copy = self.copies.get((node.name, stream, seq))
            if copy is not None and copy.removed:
                self.violation("R4", f"{mid} was settled and is still in {stream}")
            if f"{node.name}/{mid}" not in self.sends:
                self.violation("none invented", f"{mid} in {stream} was never sent")
        self._check_sends(node.name, live)

    def _check_sends(self, node: str, live: Live) -> None:
        found = _Found(live)
        for (where, stream, seq), copy in self.copies.items():
            if where == node:
                found.add(copy, stream, seq)
        for send in self.sends.values():
            if send.node == node and not send.is_ping:
                self._check_send(send, found)
        self._check_transactions(node, set(found.places), found.present)

    def _check_send(self, send: Send, found: _Found) -> None:
        mid = send.mid
        places = found.places.get(mid, set())
        if send.accepted and not send.expires:
            if mid not in found.present and mid not in found.consumed:
                self.violation("S1", f"{mid} was accepted by {send.entity} and is lost")
            for name in send.subscriptions:
                if (mid, name) not in found.kept:
                    self.violation("E8", f"the copy of {mid} for {name} is lost")
        if send.may_repeat:
            return
        if send.refused and places:
            self.violation("S2", f"{mid} was refused by {send.entity} and is there")
        for stream, count in Counter(stream for stream, _ in places).items():
            if count > 1:
                self.violation("once", f"{mid} was {count} times in {stream}")
            if send.subscriptions and _parent(stream) not in send.subscriptions:
                self.violation("E8", f"{mid} is in {stream}, whose filter it does not match")

    def check_pair(self, primary: str, secondary: Node) -> None:
        """What a backlog queue accepted is still in it, or the primary has accepted it (P11)."""
        kept = {mid for _, _, mid in secondary.live().values()}
        for send in self.sends.values():
            if send.node == secondary.name and send.accepted and send.mid not in kept:
                moved = self.sends.get(f"{primary}/{send.mid}")
                if moved is None or not moved.accepted:
                    self.violation("P11", f"{send.mid} left the backlog and is not in the primary")

    def _check_transactions(self, node: str, seen: set[str], present: set[str]) -> None:
        """All of a transaction happened, or none of it (E10)."""
        for txn in self.transactions:
            if txn.node != node:
                continue
            done = [send.mid in seen for send in txn.sends]
            source = txn.completes
            if source is not None:
                done.append(source.mid not in present)
            what = f"{txn.mid}: {done}"
            if any(done[: len(txn.sends)]) and not all(done):
                self.violation("E10", f"a transaction happened in part, {what}")
            if txn.accepted and not txn.rolls_back and not all(done):
                self.violation("E10", f"a committed transaction is not there, {what}")
            if (txn.rolls_back or txn.refused) and any(done[: len(txn.sends)]):
                self.violation("E10", f"a transaction that was rolled back is there, {what}")


class _Found:
    """Where messages are or have been, by message id."""

    def __init__(self, live: Live) -> None:
        self.places: dict[str, set[tuple[str, int]]] = {}
        self.present: set[str] = set()
        #: Completed, or deleted on receipt, as far as anybody can know.
        self.consumed: set[str] = set()
        #: Message and entity: it is there, or was consumed there.
        self.kept: set[tuple[str, str]] = set()
        for (stream, seq), (_, _, mid) in live.items():
            self.places.setdefault(mid, set()).add((stream, seq))
            self.present.add(mid)
            self.kept.add((mid, _parent(stream)))

    def add(self, copy: Copy, stream: str, seq: int) -> None:
        self.places.setdefault(copy.mid, set()).add((stream, seq))
        # A dead letter is not consumed: it must be in the dead-letter queue.
        if copy.is_deleted_on_receipt or any(d.asked != DEAD_LETTER for d in copy.removal_asked):
            self.consumed.add(copy.mid)
            self.kept.add((copy.mid, _parent(stream)))


def _parent(stream: str) -> str:
    """The entity that a stream or sub-queue belongs to."""
    return stream.partition("/$")[0]


def code_of(said: Described) -> int:
    assert isinstance(said.descriptor, int)
    return int(said.descriptor)


def fields_of(said: Described) -> list[Any]:
    assert isinstance(said.value, list)
    return said.value


def _meaning(outcome: Described) -> str:
    code = code_of(outcome)
    if code == TRANSACTIONAL:
        return IN_TRANSACTION
    if code == MODIFIED:
        return DEFER if fields_of(outcome)[1] else ABANDON
    return {ACCEPTED: COMPLETE, REJECTED: DEAD_LETTER, RELEASED: ABANDON}[code]
