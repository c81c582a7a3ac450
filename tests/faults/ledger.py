"""What the official SDK was told, kept while the broker is mistreated, and compared at the end.

`Ledger` knows in which places each message may be: an operation that was begun adds a place,
an operation that was answered leaves only that place. `Traffic` sends and receives in threads
until it is stopped, and goes on through every error: the broker is expected to fail.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusServerBusyError

from tests.support.broker import Broker

QUEUE = "ledger"
_PAUSE_S = 0.05

ACTIVE, DEFERRED, DEAD, GONE = "active", "deferred", "dead-lettered", "gone"
Found = Iterable[tuple[str, str]]


def client_of(broker: Broker) -> ServiceBusClient:
    """A client that fails fast: the test, not the SDK, decides when to try again."""
    return ServiceBusClient.from_connection_string(
        broker.connection_string, retry_total=0, socket_timeout=5
    )


class Ledger:
    """One queue's messages by id, and where each of them may be."""

    def __init__(self) -> None:
        self._places: dict[str, frozenset[str]] = {}
        #: Sends that were neither answered nor seen to have arrived.
        self._unsure: set[str] = set()
        #: Those that a receiver may still get.
        self.waiting: set[str] = set()
        self._guard = threading.Lock()
        #: What cannot be, in words.
        self.faults: list[str] = []

    def _put(self, name: str, *places: str) -> None:
        self._places[name] = frozenset(places)
        if ACTIVE in places:
            self.waiting.add(name)
        else:
            self.waiting.discard(name)

    def sending(self, name: str) -> None:
        """A send begins, perhaps again, for want of an answer: it may be there or not."""
        with self._guard:
            if name not in self._places or name in self._unsure:
                self._put(name, GONE, ACTIVE)
                self._unsure.add(name)

    def sent(self, name: str) -> None:
        """The send was answered. A receiver may have been faster: then it knows better."""
        with self._guard:
            if name in self._unsure:
                self._unsure.remove(name)
                self._put(name, ACTIVE)

    def moving(self, name: str, place: str) -> None:
        """An operation that takes it to `place` begins: until the answer it may be in either."""
        with self._guard:
            self._put(name, place, *self._places[name])

    def moved(self, name: str, place: str) -> None:
        """The broker answered: it is there and nowhere else."""
        with self._guard:
            self._put(name, place)

    def seen(self, name: str, place: str) -> None:
        """The broker showed it there, which settles any doubt."""
        with self._guard:
            self._unsure.discard(name)
            places = self._places.get(name)
            self._put(name, place)
        if places is None:
            self.faults.append(f"{name} came, and nobody sent it")
        elif place not in places:
            self.faults.append(f"{name} came {place}; it was acknowledged as {_words(places)}")

    def may_be(self, name: str, place: str) -> bool:
        return place in self._places[name]

    def has_arrived(self, name: str) -> bool:
        """Tell whether the broker has answered its send, or shown it since."""
        return name not in self._unsure

    def check(self, found: Found, lost_max: int = 0) -> int:
        """S1, R4, R10: compare with everything the broker holds once nothing moves any more.

        `lost_max` is how many active ones a receive-and-delete may have had on the wire (R1);
        how many there were is given.
        """
        lost = 0
        held: dict[str, str] = {}
        for name, place in found:
            if name in held:
                self.faults.append(f"{name} is there twice, {held[name]} and {place}")
            held[name] = place
            self.seen(name, place)
        for name, places in list(self._places.items()):
            if name in held:
                continue
            if GONE not in places:
                lost += 1
                if lost > lost_max:
                    self.faults.append(f"{name} was acknowledged as {_words(places)} and is lost")
            # What is not there now must not come later.
            self.moved(name, GONE)
        shown = "\n".join(self.faults[:10])
        assert not self.faults, f"{len(self.faults)} faults, such as\n{shown}"
        return lost


def _words(places: frozenset[str]) -> str:
    return " or ".join(sorted(places))


class Traffic:
    """Senders and receivers that complete, on one queue."""

    def __init__(
        self, broker: Broker, *, senders: int = 2, receivers: int = 1, body_bytes: int = 500
    ) -> None:
        self._broker = broker
        self._body = b"x" * body_bytes
        self._stopping = threading.Event()
        self._numbers = itertools.count()
        self.ledger = Ledger()
        #: Sends and completions that were answered.
        self.sent = self.completed = 0
        #: Sends for which the broker was too busy.
        self.refused = 0
        work = [self._send] * senders + [self._receive] * receivers
        self._threads = [threading.Thread(target=self._persist, args=(act,)) for act in work]

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def wait_for(self, count: int, seconds_max: float = 30) -> None:
        """Let it go on until so many more sends are acknowledged."""
        wanted = self.sent + count
        deadline = time.monotonic() + seconds_max
        while self.sent < wanted:
            assert time.monotonic() < deadline, f"no {count} sends in {seconds_max} s"
            time.sleep(0.01)

    def _persist(self, act: Callable[[ServiceBusClient], None]) -> None:
        while not self._stopping.is_set():
            with suppress(Exception):
                client = client_of(self._broker)
                try:
                    act(client)
                finally:
                    with suppress(Exception):
                        client.close()
            time.sleep(_PAUSE_S)

    def _send(self, client: ServiceBusClient) -> None:
        with client.get_queue_sender(QUEUE) as sender:
            while not self._stopping.is_set():
                name = f"{next(self._numbers)}"
                self.ledger.sending(name)
                try:
                    sender.send_messages(ServiceBusMessage(self._body, message_id=name), timeout=10)
                except ServiceBusServerBusyError:
                    self.refused += 1
                    raise
                self.ledger.sent(name)
                self.sent += 1

    def _receive(self, client: ServiceBusClient) -> None:
        with client.get_queue_receiver(QUEUE, max_wait_time=1) as receiver:
            while not self._stopping.is_set():
                for message in receiver.receive_messages(max_message_count=5, max_wait_time=1):
                    name = str(message.message_id)
                    self.ledger.seen(name, ACTIVE)
                    self.ledger.moving(name, GONE)
                    receiver.complete_message(message)
                    self.ledger.moved(name, GONE)
                    self.completed += 1

    def check(self) -> None:
        """Empty the queue and compare."""
        held: list[tuple[str, str]] = []
        with client_of(self._broker) as client, client.get_queue_receiver(QUEUE) as receiver:
            while messages := receiver.receive_messages(max_message_count=500, max_wait_time=2):
                for message in messages:
                    held.append((str(message.message_id), ACTIVE))
                    receiver.complete_message(message)
        self.ledger.check(held)
