"""Official SDK clients that do everything at once, through every crash, and keep ledgers.

`Crew` runs one thread for each way of using a queue. A thread that meets an error makes itself
a new client once the broker is up again. `check` asks the broker what it holds, without taking
anything out, and compares that with what each client was told.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial

from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusMessageState,
    ServiceBusReceivedMessage,
    ServiceBusReceiveMode,
    ServiceBusReceiver,
    ServiceBusSubQueue,
)

from tests.faults.ledger import ACTIVE, DEAD, DEFERRED, GONE, Ledger, client_of
from tests.support.broker import Broker

WORK, FLEETING, ORDERED, ONCE = "work", "fleeting", "ordered", "once"
QUEUES: dict[str, dict[str, object]] = {
    WORK: {"LockDuration": "PT1M", "MaxDeliveryCount": 1000},
    FLEETING: {},
    ORDERED: {"RequiresSession": True, "MaxDeliveryCount": 1000},
    ONCE: {
        "RequiresDuplicateDetection": True,
        "DuplicateDetectionHistoryTimeWindow": "PT5M",
        "MaxDeliveryCount": 1000,
    },
}
#: What every kind of client does regularly.
KINDS = (
    "send", "send a batch", "cancel", "work to gone", "send to be deleted", "ordered to gone",
    "set state", "once to gone",
)  # fmt: skip
_COUNT = 5
_SESSIONS = ("s0", "s1", "s2")
_WAIT_S = 0.1
_PAUSE_S = 0.02
# How much may be in the working queue before senders pause.
_WAITING_MAX = 300

Work = Callable[[ServiceBusClient], None]


class Crew:
    def __init__(self, broker: Broker, seed: int) -> None:
        self._broker = broker
        self._dice = random.Random(seed)
        self._numbers = itertools.count()
        self._stopping = False
        self._up = threading.Event()
        self._threads: list[threading.Thread] = []
        self.ledgers = {name: Ledger() for name in QUEUES}
        #: Operations by kind: answered, and cut off without an answer.
        self.answered: Counter[str] = Counter()
        self.cut_off: Counter[str] = Counter()
        #: What receive-and-delete may have had on the wire when its connection broke (R1).
        self._wire_max = 0
        #: Batches that were sent, by their names.
        self._batches: list[list[str]] = []
        #: Deferred messages by sequence number.
        self._deferred: dict[int, str] = {}
        #: Sends to be repeated until they are answered.
        self._repeat: list[str] = []
        #: By session: numbers that wait to be received, and the states that it may have.
        self._waiting: dict[str, list[int]] = {}
        self._states: dict[str, set[bytes]] = {}

    # --- threads ----------------------------------------------------------------------

    def start(self) -> None:
        self._stopping = False
        self._up.set()
        work: list[Work] = [
            self._send_singly, self._send_batches, self._schedule, self._settle, self._clean,
            self._receive_and_delete, self._keep_order, self._send_once,
        ]  # fmt: skip
        self._threads = [threading.Thread(target=self._persist, args=(act,)) for act in work]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._up.set()
        for thread in self._threads:
            thread.join()

    def wait_for(self, kind: str, count: int, seconds_max: float = 60) -> None:
        """Let it go on until so many more operations of a kind are answered."""
        wanted = self.answered[kind] + count
        deadline = time.monotonic() + seconds_max
        while self.answered[kind] < wanted:
            assert time.monotonic() < deadline, f"no {count} answers to {kind!r}"
            time.sleep(0.002)

    def crash(self) -> None:
        """Kill the broker and start it again on the same data."""
        self._up.clear()
        self._broker.kill()
        self._broker.start()
        self._up.set()

    def _persist(self, act: Work) -> None:
        while not self._stopping:
            self._up.wait()
            with suppress(Exception):
                client = client_of(self._broker)
                try:
                    while not self._stopping:
                        act(client)
                finally:
                    with suppress(Exception):
                        client.close()
            time.sleep(_PAUSE_S)

    @contextmanager
    def _asking(self, kind: str) -> Iterator[None]:
        """Around each call that promises something."""
        try:
            yield
        except Exception:
            self.cut_off[kind] += 1
            raise
        self.answered[kind] += 1

    def _names(self, kind: str) -> Iterator[str]:
        return (f"{kind}-{number}" for number in self._numbers)

    def _wait_for_room(self) -> None:
        """Senders are faster than receivers."""
        while len(self.ledgers[WORK].waiting) > _WAITING_MAX and not self._stopping:
            time.sleep(_PAUSE_S)

    # --- the working queue: every way to send, every way to settle ---------------------

    def _send_singly(self, client: ServiceBusClient) -> None:
        ledger = self.ledgers[WORK]
        with client.get_queue_sender(WORK) as sender:
            for name in self._names("single"):
                self._wait_for_room()
                ledger.sending(name)
                with self._asking("send"):
                    sender.send_messages(_message(name), timeout=10)
                ledger.sent(name)
                if self._stopping:
                    return

    def _send_batches(self, client: ServiceBusClient) -> None:
        ledger = self.ledgers[WORK]
        with client.get_queue_sender(WORK) as sender:
            while not self._stopping:
                self._wait_for_room()
                names = list(itertools.islice(self._names("batch"), _COUNT))
                for name in names:
                    ledger.sending(name)
                self._batches.append(names)
                with self._asking("send a batch"):
                    sender.send_messages([_message(name) for name in names], timeout=10)
                for name in names:
                    ledger.sent(name)

    def _schedule(self, client: ServiceBusClient) -> None:
        """Some come soon; some are far off, and taken back."""
        ledger = self.ledgers[WORK]
        with client.get_queue_sender(WORK) as sender:
            for name in self._names("scheduled"):
                self._wait_for_room()
                is_near = self._dice.random() < 0.5
                due = datetime.now(UTC) + timedelta(seconds=0.5 if is_near else 60)
                ledger.sending(name)
                with self._asking("schedule"):
                    (seq,) = sender.schedule_messages(_message(name), due, timeout=10)
                ledger.sent(name)
                if not is_near:
                    ledger.moving(name, GONE)
                    with self._asking("cancel"):
                        sender.cancel_scheduled_messages(seq, timeout=10)
                    ledger.moved(name, GONE)
                if self._stopping:
                    return

    def _settle(self, client: ServiceBusClient) -> None:
        with client.get_queue_receiver(WORK) as receiver:
            while not self._stopping:
                for message in receiver.receive_messages(2 * _COUNT, max_wait_time=_WAIT_S):
                    self._settle_one(receiver, message)

    def _settle_one(self, receiver: ServiceBusReceiver, message: ServiceBusReceivedMessage) -> None:
        ledger, name = self.ledgers[WORK], str(message.message_id)
        ledger.seen(name, ACTIVE)
        way = self._dice.choice(["complete", "complete", "abandon", "defer", "dead-letter"])
        if way == "abandon":
            with self._asking("abandon"):
                receiver.abandon_message(message)
        elif way == "complete":
            self._move(WORK, name, GONE, lambda: receiver.complete_message(message))
        elif way == "defer":
            assert message.sequence_number is not None
            # Noted before the answer: the sequence number is the only way back to it.
            self._deferred[message.sequence_number] = name
            self._move(WORK, name, DEFERRED, lambda: receiver.defer_message(message))
        else:
            self._move(WORK, name, DEAD, lambda: receiver.dead_letter_message(message, "why"))

    def _move(self, queue: str, name: str, place: str, ask: Callable[[], None]) -> None:
        self.ledgers[queue].moving(name, place)
        with self._asking(f"{queue} to {place}"):
            ask()
        self.ledgers[queue].moved(name, place)

    def _clean(self, client: ServiceBusClient) -> None:
        """Take out what was deferred and dead-lettered."""
        dead = ServiceBusSubQueue.DEAD_LETTER
        with (
            client.get_queue_receiver(WORK, sub_queue=dead) as burials,
            client.get_queue_receiver(WORK) as receiver,
        ):
            while not self._stopping:
                for message in burials.receive_messages(_COUNT, max_wait_time=_WAIT_S):
                    self._take(burials, message, DEAD)
                for seq in list(self._deferred)[:_COUNT]:
                    self._fetch(receiver, seq)

    def _fetch(self, receiver: ServiceBusReceiver, seq: int) -> None:
        """One that was not deferred after all is not found."""
        found = receiver.receive_deferred_messages(seq, timeout=10)
        del self._deferred[seq]
        for message in found:
            self._take(receiver, message, DEFERRED)

    def _take(
        self, receiver: ServiceBusReceiver, message: ServiceBusReceivedMessage, place: str
    ) -> None:
        name = str(message.message_id)
        self.ledgers[WORK].seen(name, place)
        self._move(WORK, name, GONE, lambda: receiver.complete_message(message))

    # --- the other queues ---------------------------------------------------------------

    def _receive_and_delete(self, client: ServiceBusClient) -> None:
        """R1: what was received may come again after a crash, what was on the wire may not."""
        ledger = self.ledgers[FLEETING]
        self._wire_max += _COUNT
        mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
        with (
            client.get_queue_sender(FLEETING) as sender,
            client.get_queue_receiver(FLEETING, receive_mode=mode) as receiver,
        ):
            while not self._stopping:
                for name in itertools.islice(self._names("fleeting"), _COUNT):
                    ledger.sending(name)
                    with self._asking("send to be deleted"):
                        sender.send_messages(_message(name), timeout=10)
                    ledger.sent(name)
                for message in receiver.receive_messages(_COUNT, max_wait_time=_WAIT_S):
                    ledger.seen(str(message.message_id), ACTIVE)
                    ledger.moving(str(message.message_id), GONE)

    def _keep_order(self, client: ServiceBusClient) -> None:
        """E6: one session's messages come in order, and its state is the one last set."""
        session = self._dice.choice(_SESSIONS)
        with (
            client.get_queue_sender(ORDERED) as sender,
            client.get_queue_receiver(ORDERED, session_id=session) as receiver,
        ):
            states = self._states.setdefault(session, {b""})
            state = receiver.session.get_state(timeout=10) or b""
            if state not in states:
                self.ledgers[ORDERED].faults.append(f"the state of {session} is {state!r}")
            for name in itertools.islice(self._names("ordered"), 4 * _COUNT):
                self.ledgers[ORDERED].sending(name)
                with self._asking("send in order"):
                    sender.send_messages(_message(name, session), timeout=10)
                self.ledgers[ORDERED].sent(name)
                self._waiting.setdefault(session, []).append(_number(name))
                for message in receiver.receive_messages(_COUNT, max_wait_time=_WAIT_S):
                    self._take_in_order(receiver, message, session)
                if self._stopping:
                    return

    def _take_in_order(
        self, receiver: ServiceBusReceiver, message: ServiceBusReceivedMessage, session: str
    ) -> None:
        ledger, name = self.ledgers[ORDERED], str(message.message_id)
        ledger.seen(name, ACTIVE)
        waiting = self._waiting[session]
        while waiting and waiting[0] < _number(name):
            # The one before may have been completed by a call that was cut off.
            if not ledger.may_be(f"ordered-{waiting.pop(0)}", GONE):
                ledger.faults.append(f"{name} overtook another one of its session")
        self._move(ORDERED, name, GONE, lambda: receiver.complete_message(message))
        new = name.encode()
        self._states[session].add(new)
        with self._asking("set state"):
            receiver.session.set_state(new, timeout=10)
        self._states[session] = {new}

    def _send_once(self, client: ServiceBusClient) -> None:
        """E7: a send that was cut off is repeated under its id, and counts once."""
        ledger = self.ledgers[ONCE]
        with (
            client.get_queue_sender(ONCE) as sender,
            client.get_queue_receiver(ONCE) as receiver,
        ):
            while not self._stopping:
                if not self._repeat:
                    self._repeat = list(itertools.islice(self._names("once"), _COUNT))
                while self._repeat:
                    ledger.sending(self._repeat[0])
                    with self._asking("send once"):
                        sender.send_messages(_message(self._repeat[0]), timeout=10)
                    ledger.sent(self._repeat.pop(0))
                for message in receiver.receive_messages(2 * _COUNT, max_wait_time=_WAIT_S):
                    name = str(message.message_id)
                    ledger.seen(name, ACTIVE)
                    self._move(ONCE, name, GONE, partial(receiver.complete_message, message))

    # --- comparing ----------------------------------------------------------------------

    def check(self) -> int:
        """Compare, while the crew rests; give how many were lost on the wire (R1)."""
        lost = 0
        with client_of(self._broker) as client:
            for queue, ledger in self.ledgers.items():
                found = list(_held(client, queue))
                lost += ledger.check(found, self._wire_max if queue == FLEETING else 0)
        for names in self._batches:
            # S6: an answered batch is there, any other is there as a whole or not at all.
            arrived = {self.ledgers[WORK].has_arrived(name) for name in names}
            assert len(arrived) == 1, f"a part of the batch {names} came"
        return lost

    def empty(self) -> None:
        """What the broker says it holds can be had: every active message comes, once."""
        for queue in (WORK, FLEETING, ONCE):
            with client_of(self._broker) as client, client.get_queue_receiver(queue) as receiver:
                while messages := receiver.receive_messages(100, max_wait_time=1):
                    for message in messages:
                        self.ledgers[queue].seen(str(message.message_id), ACTIVE)
                        receiver.complete_message(message)
                        self.ledgers[queue].moved(str(message.message_id), GONE)
        self.check()


def _message(name: str, session: str | None = None) -> ServiceBusMessage:
    return ServiceBusMessage(b"x" * 200, message_id=name, session_id=session)


def _number(name: str) -> int:
    return int(name.rpartition("-")[2])


def _held(client: ServiceBusClient, queue: str) -> Iterator[tuple[str, str]]:
    """Everything in a queue and its dead-letter queue, by peeking."""
    if queue == ORDERED:
        for session in _SESSIONS:
            with client.get_queue_receiver(queue, session_id=session) as receiver:
                yield from _peeked(receiver, ACTIVE)
    else:
        with client.get_queue_receiver(queue) as receiver:
            yield from _peeked(receiver, ACTIVE)
    with client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
        yield from _peeked(receiver, DEAD)


def _peeked(receiver: ServiceBusReceiver, place: str) -> Iterator[tuple[str, str]]:
    next_seq = 1
    while found := receiver.peek_messages(250, sequence_number=next_seq, timeout=30):
        for message in found:
            next_seq = (message.sequence_number or 0) + 1
            is_deferred = message.state == ServiceBusMessageState.DEFERRED
            yield str(message.message_id), DEFERRED if is_deferred else place
