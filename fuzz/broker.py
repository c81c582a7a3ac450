"""A broker in memory with one connection, for fuzzing what stands behind the frames.

Bytes choose what is asked of it: requests to `$management`, or attaching, sending, receiving and
settling on links. Every request must be answered, and what the broker holds at the end must be
what its journal tells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import UUID

from fuzz.messages import MESSAGES
from fuzz.requests import request
from tests.sim.node import live_of, replay
from tests.store.journal_disks import MemoryDisk
from tests.unit.amqp.amqp_client import DETACH, TRANSFER, Frame, source, target
from tests.unit.server.server_kit import Machine, join
from twinbus.amqp.codec import encode
from twinbus.amqp.exchange import decode_exchange
from twinbus.amqp.sections import BATCH_FORMAT
from twinbus.amqp.types import Described, Symbol, UInt, ULong
from twinbus.core.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.server.door import SESSION_FILTER

ENTITIES = ("q", "s", "t", "t/Subscriptions/u", "q/$deadletterqueue")
HANDLES = 6
COORDINATOR = HANDLES + 3
# Statuses from here on are refusals.
REFUSED = 400
_TXN_ID_BYTES = 16
# A byte from here on asks for what is against the protocol and ends the session.
_FAULTY = 0xF0


DEAD_LETTER = Described(
    ULong(0x25), [Described(ULong(0x1D), [Symbol("com.microsoft:dead-letter"), "x"])]
)
DEFER = Described(ULong(0x27), [True, True])
OUTCOMES = (
    Described(ULong(0x24), []),
    DEAD_LETTER,
    Described(ULong(0x26), []),
    Described(ULong(0x27), [True, False]),
    DEFER,
    Described(ULong(0x27), [False, True, {Symbol("a"): 1}]),
    None,
    Described(ULong(0x23), [UInt(0), ULong(0)]),
)


class ManagedBroker(Machine):
    def __init__(self) -> None:
        self._disk = MemoryDisk()
        self._dice_total = 0
        #: Handles of the links that use them, as far as the client knows.
        self._receivers: list[int] = []
        self._senders = [HANDLES, HANDLES + 1, HANDLES + 2]
        #: Tokens of locks: one that there never was, and those that requests got.
        self._tokens = [UUID(int=1)]
        #: The transactions that were declared, and one that never was.
        self._txn_ids = [b"none"]
        super().__init__(self._disk, segment_bytes=1 << 16, dice=self._dice)
        now_ms = self.broker.begin_turn()
        namespace = self.broker.engine.namespace("n", now_ms)
        namespace.create_queue(QueueDescription("q", lock_duration_ms=5000), now_ms)
        namespace.create_queue(QueueDescription("s", requires_session=True), now_ms)
        namespace.create_topic(TopicDescription("t", requires_duplicate_detection=True), now_ms)
        namespace.create_subscription(SubscriptionDescription("t", "u"), None, now_ms)
        self._peer, _ = join(self.broker.hub, namespace)
        self._fill()

    def _dice(self, count: int) -> bytes:
        self._dice_total += 1
        drawn = self._dice_total.to_bytes(count, "big")
        if count == _TXN_ID_BYTES:
            self._txn_ids.append(drawn)
        return drawn

    def _txn_id(self, choice: int) -> bytes:
        """The latest transaction that was declared, one of those before it, or none."""
        return self._txn_ids[-1 - choice % 4 % len(self._txn_ids)]

    def _fill(self) -> None:
        """Something for requests to find: three messages in each."""
        for handle, name in zip(self._senders, ("q", "s", "t"), strict=True):
            self._peer.attach(handle, receiver=False, name=f"fill-{name}", target=target(name))
            for number in range(3):
                payload = MESSAGES[1] if name == "s" else MESSAGES[0]
                self._peer.transfer(handle, (handle - HANDLES) * 3 + number, payload)
        coordinator = Described(ULong(0x30), [])
        self._peer.attach(COORDINATOR, receiver=False, name="c", target=coordinator)
        self._turn()
        self._sent = 9

    def _turn(self, seconds: float = 0.001) -> None:
        """Let the broker do what there is to do."""
        self.broker.begin_turn()
        self.run(seconds)
        if self.broker.journal.failed is not None:
            raise self.broker.journal.failed
        self._peer.read()

    # --- requests to $management ------------------------------------------------------

    def prepare(self) -> None:
        """Something of each kind for requests to find: in `q` a deferred message and a dead one,
        of `s` a session that is held."""
        self._peer.attach(2, receiver=True, name="q", source=source("q"), snd=0)
        self._peer.flow(2, 2)
        wanted = {Symbol(SESSION_FILTER): "a"}
        self._peer.attach(3, receiver=True, name="s", source=source("s", *[None] * 6, wanted))
        self._turn()
        for delivery, outcome in enumerate((DEFER, DEAD_LETTER)):
            self._peer.disposition(delivery, None, settled=True, state=outcome)
        self._peer.send(DETACH, [UInt(2), True])
        self._turn()

    def ask(self, data: bytes) -> None:
        """Make a request. It must be answered, and one that is refused must change nothing."""
        steps = iter(data)
        address = f"{ENTITIES[next(steps, 0) % len(ENTITIES)]}/$management"
        operation, body = request(steps, self._tokens)
        self._peer.attach(0, receiver=True, name="in", source=source(address))
        self._peer.attach(1, receiver=False, name="out", target=target(address))
        self._peer.flow(0, 10)
        self._turn()
        headers = {"operation": f"com.microsoft:{operation}"}
        payload = encode(Described(ULong(0x73), ["m", None, None, None, "in"]))
        payload += encode(Described(ULong(0x74), headers)) + b"\x00\x53\x77" + body
        heard = len(self._peer.heard)
        self._peer.transfer(1, self._sent, payload)
        self._sent += 1
        is_changed = self.broker.kernel.has_runs or self.broker.journal.pending_count
        self._turn()
        assert not self._peer.server.finished, "the connection was lost"
        # What cannot be decoded at all ends the link, with the reason.
        answers = [frame for frame in self._peer.heard[heard:] if frame.code in (TRANSFER, DETACH)]
        assert answers, "the request was not answered"
        for answer in answers:
            if answer.code == TRANSFER:
                is_taken = self._read(answer)
                assert is_taken or not is_changed, "the request was refused and changed something"
        for handle in range(2):
            self._peer.send(DETACH, [UInt(handle), True])

    def _read(self, answer: Frame) -> bool:
        """Tell whether a request was taken; keep the tokens of locks that it got."""
        _, headers, body = decode_exchange(answer.payload)
        found = body.get("messages") if isinstance(body, dict) else None
        for entry in found or ():
            if isinstance(entry, dict) and "lock-token" in entry:
                self._tokens.append(entry["lock-token"])
        status = headers["statusCode"]
        assert isinstance(status, int)
        return status < REFUSED

    # --- links ------------------------------------------------------------------------

    def use_links(self, data: bytes) -> None:
        steps = iter(data)
        acts: tuple[Callable[[Iterator[int]], None], ...] = (
            self._attach_receiver,
            self._attach_sender,
            self._flow,
            self._flow,
            self._transfer,
            self._transfer,
            self._disposition,
            self._disposition,
            self._detach,
            self._pass_time,
            self._coordinate,
        )
        for step in steps:
            acts[step % len(acts)](steps)
            if step & 0x80:
                self._turn()
            if self._peer.server.finished:
                return

    def _attach_receiver(self, steps: Iterator[int]) -> None:
        choice = next(steps, 0)
        name = ENTITIES[choice % len(ENTITIES)]
        session = (None, "", "a")[choice // 8 % 3]
        wanted = {Symbol(SESSION_FILTER): session}
        more = [None] * 6 + [wanted if name == "s" or choice & 0x80 else None]
        handle = self._free(next(steps, 0))
        self._receivers.append(handle)
        self._peer.attach(
            handle,
            receiver=True,
            name=f"r{handle}",
            source=source(name, *more),
            snd=choice // 32 % 3,
            rcv=choice // 64 % 2,
        )

    def _attach_sender(self, steps: Iterator[int]) -> None:
        choice, handle = next(steps, 0), self._free(next(steps, 0))
        self._senders.append(handle)
        name = ENTITIES[choice % len(ENTITIES)]
        self._peer.attach(handle, receiver=False, name=f"s{handle}", target=target(name))

    def _free(self, choice: int) -> int:
        """A handle that is free or is freed; now and then one in use, which ends the session."""
        handle = choice % HANDLES
        if choice < _FAULTY and handle in self._receivers + self._senders:
            self._end(handle, closed=True)
        return handle

    def _one_of(self, handles: list[int], choice: int) -> int:
        """The handle of an open link; now and then any."""
        return handles[choice % len(handles)] if handles and choice < _FAULTY else choice % HANDLES

    def _end(self, handle: int, *, closed: bool) -> None:
        self._peer.send(DETACH, [UInt(handle), closed])
        for handles in (self._receivers, self._senders):
            if handle in handles:
                handles.remove(handle)

    def _flow(self, steps: Iterator[int]) -> None:
        handle, credit = next(steps, 0), next(steps, 0)
        self._peer.flow(
            self._one_of(self._receivers, handle), credit % 16, count=credit // 32,
            drain=bool(handle & 0x40), echo=bool(handle & 0x80),
        )  # fmt: skip

    def _transfer(self, steps: Iterator[int]) -> None:
        choice, how = next(steps, 0), next(steps, 0)
        state = Described(ULong(0x34), [self._txn_id(how)]) if how & 0x40 else None
        handle = self._one_of(self._senders, choice)
        fields = [UInt(handle), UInt(self._sent), b"tag"]
        is_part = how & 0x0F == 0x0E
        fields += [UInt(BATCH_FORMAT if how & 0x10 else 0), bool(how & 0x20), is_part]
        fields += [None, state, None, how & 0x0F == 0x0F]
        self._peer.send(TRANSFER, fields, payload=MESSAGES[choice // 8 % len(MESSAGES)])
        if not is_part:
            self._sent += 1

    def _disposition(self, steps: Iterator[int]) -> None:
        first, how = next(steps, 0), next(steps, 0)
        state: object = OUTCOMES[how % len(OUTCOMES)]
        if how & 0x40:
            state = Described(ULong(0x34), [self._txn_id(first), state])
        last = None if how & 0x10 else first % 32 + first // 64
        self._peer.disposition(first % 32, last, settled=bool(how & 0x20), state=state)

    def _detach(self, steps: Iterator[int]) -> None:
        choice = next(steps, 0)
        handle = self._one_of(self._receivers + self._senders, choice)
        self._end(handle, closed=bool(choice & 0x40))

    def _pass_time(self, steps: Iterator[int]) -> None:
        self._turn(next(steps, 0) / 10)

    def _coordinate(self, steps: Iterator[int]) -> None:
        """Declare or discharge a transaction."""
        choice = next(steps, 0)
        request = Described(ULong(0x31), [])
        if choice % 2:
            request = Described(ULong(0x32), [self._txn_id(choice // 4), bool(choice & 2)])
        self._peer.transfer(COORDINATOR, self._sent, encode(Described(ULong(0x77), request)))
        self._sent += 1

    # --- the end ----------------------------------------------------------------------

    def check(self) -> None:
        """Nothing may be held that a restart would not find, and nothing less."""
        self._turn()
        live = live_of(self.broker.engine)
        assert live == replay(self._disk.contents(), self.loop.now_ms()), "not what is on disk"
