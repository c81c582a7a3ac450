"""What was sent, who took it, and what the target holds at the end.

A competing receiver takes messages of the source away while streams copy it. In the end every
message is either its, or at the target, or (for those it never got an answer for) one of both.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from types import TracebackType

from azure.servicebus import ServiceBusClient

from tests.support.broker import Broker


class Competitor:
    """An ordinary receiver, in a thread: takes a message every other second and completes it."""

    def __init__(self, broker: Broker, queue: str, pause_s: float = 2.0) -> None:
        self._broker = broker
        self._queue = queue
        self._pause_s = pause_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"competitor of {queue}")
        self.completed: list[str] = []
        #: Asked for, and no answer: they may be completed or not.
        self.unsure: set[str] = set()

    def __enter__(self) -> Competitor:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self._thread.join()

    def wait_for_one(self) -> None:
        deadline = time.monotonic() + 60
        while not self.completed:
            assert time.monotonic() < deadline, "the competitor got nothing in a minute"
            time.sleep(0.05)

    def _run(self) -> None:
        while not self._stopping.is_set():
            # The broker may be killed at any time: begin again.
            with suppress(Exception):
                client = ServiceBusClient.from_connection_string(
                    self._broker.connection_string, retry_total=0, socket_timeout=5
                )
                with client, client.get_queue_receiver(self._queue) as receiver:
                    while not self._stopping.is_set():
                        for message in receiver.receive_messages(1, max_wait_time=0.5):
                            name = str(message.message_id)
                            self.unsure.add(name)
                            receiver.complete_message(message)
                            self.completed.append(name)
                            self.unsure.discard(name)
                        self._stopping.wait(self._pause_s)
            self._stopping.wait(self._pause_s)


def check(sent: list[str], copied: list[str], competitor: Competitor | None = None) -> None:
    """L3: nothing lost, nothing twice, nothing invented."""
    taken = competitor.completed if competitor else []
    unsure = competitor.unsure if competitor else set()
    both = sorted(set(copied) & set(taken))
    lost = sorted(set(sent) - set(copied) - set(taken) - unsure)
    assert not lost, f"{len(lost)} messages lost: {lost[:5]}"
    assert len(copied) == len(set(copied)), f"{len(copied) - len(set(copied))} came twice"
    assert len(taken) == len(set(taken)), "the competitor got messages twice"
    assert not both, f"{len(both)} messages were copied and received as well: {both[:5]}"
    assert set(copied) <= set(sent), "messages that nobody sent"
