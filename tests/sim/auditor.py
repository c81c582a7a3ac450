"""Knows what was asked and what was promised, and says when the two do not agree.

Everything a broker says comes in when it is said, with the virtual time. It changes nothing: a
violation is a line of text, and a run with one has failed. Every event also goes into the
trace, whose hash tells whether two runs were the same. `at_rest` judges what is left at the
end, `ledgers` what is more than a message: sessions' states and reservations.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.sim.facts import (
    ACCEPTED,
    DEAD_LETTER,
    DEFER,
    IN_DOUBT,
    IN_TRANSACTION,
    REMOVES,
    TRANSACTIONAL,
    Copy,
    Delivery,
    Send,
    Txn,
    meaning,
)
from tests.sim.reading import sections_of
from twinbus.amqp.types import Described

if TYPE_CHECKING:
    from tests.sim.network import Wire

_DEAD_LETTERS = "/$DeadLetterQueue"


class Auditor:
    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.now_ms = now_ms
        self.violations: list[str] = []
        self.sends: dict[str, Send] = {}
        self.transactions: list[Txn] = []
        self.copies: dict[tuple[str, str, int], Copy] = {}
        self.counts: Counter[str] = Counter()
        self.trace: list[str] | None = None
        self._lines: list[str] = []
        self._events_total = 0
        self._hash = hashlib.blake2b(digest_size=8)
        #: Of each session: what was sent to it, one after the other, and what was delivered.
        self._sent: dict[tuple[str, str, str], list[Send]] = {}
        self._seen: dict[tuple[str, str, str], set[Send]] = {}
        #: Of each session, the last delivery to whoever holds it.
        self._holders: dict[tuple[str, str, str], Delivery] = {}
        #: When the locks of an entity were last dropped.
        self._dropped_ms: dict[tuple[str, str], int] = {}
        #: Of each broker: what it deleted as it handed it over, with the place in the events.
        self._deleted: dict[str, list[tuple[int, Copy]]] = {}

    @property
    def trace_hash(self) -> str:
        self._hash.update("\n".join(self._lines).encode())
        self._lines.clear()
        return self._hash.hexdigest()

    def note(self, kind: str, *what: object) -> None:
        line = f"{self.now_ms()} {kind} {' '.join(map(str, what))}"
        self.counts[kind] += 1
        self._events_total += 1
        self._lines.append(line)
        if self.trace is not None:
            self.trace.append(line)

    def violation(self, rule: str, what: str) -> None:
        self.note("VIOLATION", rule, what)
        self.violations.append(f"{self.now_ms()} {rule}: {what}")

    # --- sends ------------------------------------------------------------------------

    def sending(self, send: Send) -> None:
        self.note("send", send.node, send.entity, send.mid)
        send.asked_at = self._events_total
        send.asked_ms = self.now_ms()
        if isinstance(send, Txn):
            self.transactions.append(send)
            if send.completes is not None and not send.rolls_back:
                self.copy(send.completes).removal_asked.add(send.completes)
            return
        self.sends[f"{send.node}/{send.mid}"] = send
        if send.session is not None:
            self._sent.setdefault((send.node, send.entity, send.session), []).append(send)

    def answered(self, send: Send, kind: int, condition: str) -> None:
        self.note("answered", send.node, send.entity, send.mid, kind, condition)
        if kind == ACCEPTED:
            if not send.accepted:
                send.accepted_at = self._events_total
            send.accepted = True
            if not send.may_repeat:
                self._synced(send)
        elif condition != IN_DOUBT:
            send.refused = True
        if isinstance(send, Txn) and send.completes is not None and not send.rolls_back:
            copy = self.copy(send.completes)
            if send.accepted:
                copy.removed = True
                copy.lock = None
            elif send.refused:
                copy.removal_asked.discard(send.completes)

    def _synced(self, send: Send) -> None:
        """The broker has synced all it did before this send came: deletions on receipt, too."""
        deleted = self._deleted.get(send.node, [])
        while deleted and deleted[0][0] < send.asked_at:
            deleted.pop(0)[1].removed = True

    # --- deliveries and locks ---------------------------------------------------------

    def delivered(self, delivery: Delivery) -> None:
        self.note("delivered", delivery, delivery.count, delivery.wire.name)
        key = (delivery.node, delivery.stream, delivery.seq)
        copy = self.copies.setdefault(key, Copy(delivery.mid))
        if copy.mid != delivery.mid:
            self.violation("E4", f"a sequence number was given twice: {delivery}, {copy.mid}")
        if copy.removed:
            self.violation("R4", f"a settled message came back: {delivery}")
        if self.is_locked(copy):
            self.violation("R2", f"a second lock on a locked message: {delivery}")
        if copy.is_deferred and delivery.number is not None:
            self.violation("E5", f"a deferred message was delivered unasked: {delivery}")
        if copy.reserved is not None:
            self.violation("L3", f"a reserved message was delivered: {delivery} {copy.reserved}")
        if delivery.is_settled:
            copy.is_deleted_on_receipt = True
            self._deleted.setdefault(delivery.node, []).append((self._events_total, copy))
        if not self._was_dropped(delivery):
            copy.lock = delivery
        send = self.sends.get(f"{delivery.node}/{delivery.mid}")
        if send is None:
            self.violation("R10", f"a message that nobody sent was delivered: {delivery}")
        else:
            self._check_message(delivery, send)
            if delivery.session is not None:
                self._check_session(delivery, send)

    def _was_dropped(self, delivery: Delivery) -> bool:
        """Whether a lock given on request may have been dropped before anybody was told (R7)."""
        entity = delivery.stream.removesuffix(_DEAD_LETTERS)
        dropped_ms = self._dropped_ms.get((delivery.node, entity), 0)
        return delivery.number is None and delivery.fetched_ms <= dropped_ms

    def _check_message(self, delivery: Delivery, send: Send) -> None:
        """A delivery must be what was sent, and in its time."""
        now_ms = self.now_ms()
        if send.is_ping:
            self.violation("P10", f"a ping was delivered: {delivery}")
        if (delivery.session, delivery.ttl_ms) != (send.session, send.ttl_ms):
            self.violation("P8", f"a message is not what was sent: {delivery}")
        if delivery.due_ms != send.due_ms:
            self.violation("P8", f"a message was due at another time: {delivery}")
        if now_ms + delivery.wire.clock.most_ms < send.due_ms:
            self.violation("E5", f"a scheduled message came too early: {delivery}")
        if send.cancelled:
            self.violation("E5", f"a message came though it was cancelled: {delivery}")
        if delivery.stream.endswith(_DEAD_LETTERS):
            self._check_reason(delivery, send)
            return
        # A deferred message does not expire while it is aside.
        expires_ms = delivery.enqueued_ms + send.ttl_ms
        if send.ttl_ms and delivery.number is not None and now_ms >= expires_ms:
            self.violation("D5", f"an expired message was delivered: {delivery}")

    def _check_reason(self, delivery: Delivery, send: Send) -> None:
        reason = sections_of(delivery.payload).get(0x74, {}).get("DeadLetterReason")
        self.note("dead letter", delivery.mid, reason)
        clock = delivery.wire.clock
        # With a clock that was set forward, time was over sooner.
        lived_ms = self.now_ms() - send.asked_ms + clock.most_ms - clock.least_ms
        if reason == "TTLExpiredException" and (not send.ttl_ms or lived_ms < send.ttl_ms):
            self.violation("D3", f"it died of old age before its time: {delivery}")

    def _check_session(self, delivery: Delivery, send: Send) -> None:
        """One receiver has a session, and gets it in the order of acceptance (E6).

        Only what was accepted before the next was sent has an order: bytes that a sender gave
        up with a broken connection may still arrive later. Through a pair there is none (P13).
        """
        assert delivery.session is not None
        key = (delivery.node, delivery.stream, delivery.session)
        holder = self._holders.get(key)
        is_held = holder is not None and self.now_ms() < holder.until_ms
        if holder is not None and is_held and holder.link_id != delivery.link_id:
            self.violation("E6", f"two have the session at once: {delivery}, {holder}")
        if delivery.number is None or delivery.stream.endswith(_DEAD_LETTERS):
            return
        self._holders[key] = delivery
        seen = self._seen.setdefault(key, set())
        if not send.may_repeat:
            for other in self._sent.get((send.node, send.entity, delivery.session), ()):
                is_before = other.accepted and other.accepted_at < send.asked_at
                if is_before and other not in seen and not other.may_repeat:
                    self.violation("E6", f"{delivery.mid} overtook {other.mid} of its session")
        seen.add(send)

    def is_locked(self, copy: Copy) -> bool:
        return copy.lock is not None and self.now_ms() < copy.lock.until_ms

    def settling(self, delivery: Delivery, outcome: Described) -> None:
        """A client settles. Whatever it wants, its hold on the message ends with it."""
        delivery.asked = meaning(outcome)
        self.note("settling", delivery, delivery.asked)

    def settling_reached(self, delivery: Delivery) -> None:
        """The request is at the broker, which may do at once what it will answer later."""
        delivery.asked_reached_ms = self.now_ms()
        copy = self.copy(delivery)
        if delivery.asked in REMOVES:
            copy.removal_asked.add(delivery)
        if copy.lock is delivery and delivery.asked != IN_TRANSACTION:
            copy.lock = None

    def settled(self, delivery: Delivery, kind: int, condition: str) -> None:
        if delivery.asked == IN_TRANSACTION or kind == TRANSACTIONAL:
            return
        self.note("settled", delivery, kind, condition)
        copy = self.copy(delivery)
        if condition:
            if condition != IN_DOUBT:
                copy.removal_asked.discard(delivery)
            return
        if delivery.asked_reached_ms >= delivery.until_ms:
            self.violation("R5", f"a settlement counted though its lock was over: {delivery}")
        if delivery.asked == DEAD_LETTER and delivery.stream.endswith(_DEAD_LETTERS):
            self.violation("D1", f"a dead letter was dead-lettered: {delivery}")
        if delivery.asked == DEFER:
            copy.is_deferred = True
        if delivery.asked in REMOVES:
            if self.is_locked(copy):
                self.violation(
                    "R5", f"a settlement counted though another has the lock: {delivery}"
                )
            if copy.removed:
                self.violation("R5", f"a message was settled twice: {delivery}")
            copy.removed = True

    def renewed(self, delivery: Delivery, until_ms: int) -> None:
        """The broker has prolonged a lock (R6), and with a session's all that it covers."""
        self.note("renewed", delivery, until_ms)
        if until_ms < delivery.until_ms:
            self.violation("R6", f"a renewal made the lock on {delivery.mid} shorter")
        delivery.until_ms = until_ms
        if delivery.session is None:
            return
        who = delivery.link_id
        for copy in self.copies.values():
            if copy.lock is not None and copy.lock.session and copy.lock.link_id == who:
                copy.lock.until_ms = until_ms
        holder = self._holders.get((delivery.node, delivery.stream, delivery.session))
        if holder is not None and holder.link_id == who:
            holder.until_ms = until_ms

    def leaving(self, wire: Wire, link: str) -> None:
        """A link ends. Locks outlive it, except those of a session (E6)."""
        for copy in self.copies.values():
            lock = copy.lock
            if lock is not None and lock.wire is wire and lock.link == link and lock.session:
                copy.lock = None
        for key, holder in list(self._holders.items()):
            if holder.wire is wire and holder.link == link:
                del self._holders[key]

    def connection_lost(self, wire: Wire) -> None:
        """The broker has lost a connection, and with it every lock it gave out there (R7)."""
        self.note("lost", wire.name)
        for copy in self.copies.values():
            if copy.lock is not None and copy.lock.wire is wire:
                copy.lock = None
        for key, holder in list(self._holders.items()):
            if holder.wire is wire:
                del self._holders[key]

    def process_ended(self, node: str) -> None:
        """What it deleted on receipt and did not sync may be there again (R10)."""
        self._deleted.pop(node, None)

    def locks_dropped(self, node: str, entity: str) -> None:
        """The entity was changed (R7): its queue and its dead-letter queue."""
        self._dropped_ms[node, entity] = self.now_ms()
        for (where, name, _), copy in self.copies.items():
            if (where, name.removesuffix(_DEAD_LETTERS)) == (node, entity):
                copy.lock = None

    def copy(self, delivery: Delivery) -> Copy:
        return self.copies[delivery.node, delivery.stream, delivery.seq]
