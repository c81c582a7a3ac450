"""What the official SDK was told, kept while the broker is mistreated, and compared at the end.

`Traffic` sends and receives in threads until it is stopped, and goes on through every error:
the broker is expected to fail. Sent ids that were acknowledged and completions that were
acknowledged go into the ledger; `check` empties the queue and says what does not add up.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from azure.servicebus import ServiceBusClient, ServiceBusMessage

from tests.support.broker import Broker

QUEUE = "ledger"
_PAUSE_S = 0.05


def client_of(broker: Broker) -> ServiceBusClient:
    """A client that fails fast: the test, not the SDK, decides when to try again."""
    return ServiceBusClient.from_connection_string(
        broker.connection_string, retry_total=0, socket_timeout=5
    )


class Traffic:
    def __init__(self, broker: Broker, *, senders: int = 2, receivers: int = 1) -> None:
        self._broker = broker
        self._stopping = threading.Event()
        self._numbers = itertools.count()
        self.sent: set[str] = set()
        self.acknowledged: set[str] = set()
        self.completed: set[str] = set()
        #: Completions that were asked for; one without an answer may count or not.
        self.asked: set[str] = set()
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
        wanted = len(self.acknowledged) + count
        deadline = time.monotonic() + seconds_max
        while len(self.acknowledged) < wanted:
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
                self.sent.add(name)
                sender.send_messages(ServiceBusMessage(b"x" * 500, message_id=name), timeout=10)
                self.acknowledged.add(name)

    def _receive(self, client: ServiceBusClient) -> None:
        with client.get_queue_receiver(QUEUE, max_wait_time=1) as receiver:
            while not self._stopping.is_set():
                for message in receiver.receive_messages(max_message_count=5, max_wait_time=1):
                    self.asked.add(str(message.message_id))
                    receiver.complete_message(message)
                    self.completed.add(str(message.message_id))

    def check(self) -> None:
        """S1, R4: nothing acknowledged is lost, nothing completed came back, nothing is new."""
        held: list[str] = []
        with client_of(self._broker) as client, client.get_queue_receiver(QUEUE) as receiver:
            while messages := receiver.receive_messages(max_message_count=500, max_wait_time=2):
                for message in messages:
                    held.append(str(message.message_id))
                    receiver.complete_message(message)
        lost = self.acknowledged - self.asked - set(held)
        assert not lost, f"{len(lost)} acknowledged messages lost: {sorted(lost)[:5]}"
        assert not self.completed & set(held), "completed messages came back"
        assert len(held) == len(set(held)), "messages came twice from an empty queue"
        assert set(held) <= self.sent, "messages that nobody sent"
