"""Bugs put in on purpose, to see that the simulation finds them.

Each is a small, plausible mistake in one method of the product, with the rule whose checker
must notice and seeds that do. They patch Python classes, so they need the interpreted form.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

from twinbus.engine.engine import Engine
from twinbus.engine.entities import Holder
from twinbus.engine.index import ACTIVE
from twinbus.engine.records import RECEIVED_AND_DELETED, RESERVED, read_reserved
from twinbus.engine.reservations import Reservations
from twinbus.engine.shelf import Shelf
from twinbus.engine.stream import Stream
from twinbus.engine.transactions import Transaction
from twinbus.pairing import rewrite
from twinbus.pairing.pump import Pump
from twinbus.pairing.rewrite import restore
from twinbus.server.broker import Broker
from twinbus.server.replies import Replies


class Planted(NamedTuple):
    #: A class or a module, and what of it is replaced.
    owner: object
    method: str
    make: Callable[[Any], Callable[..., Any]]
    #: The rule that it breaks.
    rule: str
    #: Seeds that catch it.
    seeds: tuple[int, ...]


def _answer_before_sync(commit: Callable[[Broker], None]) -> Callable[[Broker], None]:
    def planted(self: Broker) -> None:
        early, self.hub.replies = self.hub.replies, Replies()
        commit(self)
        early.release()

    return planted


def _lock_boundary(check_lock: Callable[..., None]) -> Callable[..., None]:
    def planted(self: Stream, lock: Any, now_ms: int) -> None:
        check_lock(self, lock, now_ms - 1)

    return planted


def _complete_before_forward(forward: Callable[..., None]) -> Callable[..., None]:
    def planted(self: Holder, *given: Any) -> None:
        asyncio.get_running_loop().call_later(0.2, forward, self, *given)

    return planted


def _syphon_completes_first(_: Any) -> Callable[..., Any]:
    async def planted(self: Pump, receiver: Any, message: Any) -> None:
        payload = self._tap.take(message, receiver)
        assert payload is not None
        await self._complete(receiver, message)
        await self._send(restore(payload))

    return planted


def _transaction_split(_: Any) -> Callable[..., None]:
    def planted(self: Transaction, now_ms: int) -> None:
        for entity, message, _ in self._sends:
            entity.publish(message, now_ms)
        for lock, (holder, stream, settlement) in self._settlements.items():
            settlement.apply(holder, stream, lock, now_ms)

    return planted


def _forgets(_: Any) -> Callable[..., None]:
    """The whole method was forgotten."""

    def planted(self: Any, *given: Any) -> None:
        pass

    return planted


def _deferred_carried_as_active(carry: Callable[..., int]) -> Callable[..., int]:
    def planted(self: Shelf, seq: int, shared: dict[int, int]) -> int:
        state = self.index.state(seq)
        self.index.set_state(seq, ACTIVE)
        written = carry(self, seq, shared)
        self.index.set_state(seq, state)
        return written

    return planted


def _deletion_not_written(note_removed: Callable[..., None]) -> Callable[..., None]:
    def planted(self: Shelf, seq: int, count: int, how: int) -> None:
        if how != RECEIVED_AND_DELETED:
            note_removed(self, seq, count, how)

    return planted


def _smaller_reservation_not_replayed(replay: Callable[..., None]) -> Callable[..., None]:
    def planted(self: Reservations, record: bytes, location: int) -> None:
        if record[0] == RESERVED:
            _, name, epoch, *_ = read_reserved(record)
            if epoch in self.reserver(name).epochs:
                return
        replay(self, record, location)

    return planted


def _syphon_loses_time_to_live(restored_header: Callable[..., Any]) -> Callable[..., Any]:
    def planted(section: bytes | None, ttl: Any) -> Any:
        return restored_header(section, None)

    return planted


PLANTED = {
    "answer-before-sync": Planted(Broker, "_commit", _answer_before_sync, "S1", (7, 9, 12)),
    "lock-boundary": Planted(Stream, "check_lock", _lock_boundary, "R5", (1, 2, 4)),
    "complete-before-forward": Planted(
        Holder, "_hand_on", _complete_before_forward, "S1", (3, 9, 10)
    ),
    "syphon-completes-first": Planted(Pump, "_handle", _syphon_completes_first, "P11", (2, 3, 4)),
    "transaction-split": Planted(Transaction, "commit", _transaction_split, "E10", (8, 24, 40)),
    "duplicates-forgotten-at-restart": Planted(
        Engine, "_restore_history", _forgets, "E7", (4, 7, 8)
    ),
    "deferred-forgotten-by-compaction": Planted(
        Shelf, "carry", _deferred_carried_as_active, "E5", (4, 21, 24)
    ),
    "reserved-delivered-after-restart": Planted(
        Reservations, "set_aside", _forgets, "L3", (2, 4, 7)
    ),
    "dead-reserved-again-after-restart": Planted(
        Reservations, "replay", _smaller_reservation_not_replayed, "L3", (2, 19, 59)
    ),
    "deletion-on-receipt-not-written": Planted(
        Shelf, "_note_removed", _deletion_not_written, "R4", (2, 4, 6)
    ),
    "session-state-lost-at-restart": Planted(
        Engine, "_replay_session_state", _forgets, "E6", (4, 10, 11)
    ),
    "syphon-loses-time-to-live": Planted(
        rewrite, "_restored_header", _syphon_loses_time_to_live, "P8", (2, 3, 6)
    ),
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    bug = PLANTED[name]
    with mock.patch.object(bug.owner, bug.method, bug.make(getattr(bug.owner, bug.method))):
        yield
