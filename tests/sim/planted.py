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

from twinbus.engine.entities import Holder
from twinbus.engine.stream import Stream
from twinbus.engine.transactions import Transaction
from twinbus.pairing.pump import Pump
from twinbus.pairing.rewrite import restore
from twinbus.server.bridge import Replies
from twinbus.server.broker import Broker


class Planted(NamedTuple):
    owner: type
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
        payload = self._tap.take(message)
        assert payload is not None
        await self._complete(receiver, message)
        await self._send(restore(payload))

    return planted


def _transaction_split(_: Any) -> Callable[..., None]:
    def planted(self: Transaction, now_ms: int) -> None:
        for entity, message in self._sends:
            entity.publish(message, now_ms)
        for holder, stream, lock, settlement in self._settlements:
            settlement.apply(holder, stream, lock, now_ms)

    return planted


PLANTED = {
    "answer-before-sync": Planted(Broker, "_commit", _answer_before_sync, "S1", (1, 2, 6)),
    "lock-boundary": Planted(Stream, "check_lock", _lock_boundary, "R5", (1, 2, 3)),
    "complete-before-forward": Planted(
        Holder, "_forward", _complete_before_forward, "S1", (9, 11, 15)
    ),
    "syphon-completes-first": Planted(Pump, "_handle", _syphon_completes_first, "P11", (3, 4, 6)),
    "transaction-split": Planted(Transaction, "commit", _transaction_split, "E10", (1, 5, 6)),
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    bug = PLANTED[name]
    with mock.patch.object(bug.owner, bug.method, bug.make(getattr(bug.owner, bug.method))):
        yield
