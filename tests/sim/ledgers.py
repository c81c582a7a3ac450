"""What a broker keeps beside messages: the states of sessions (E6), reservations (L3).

Requests come in when they reach the broker, answers when it gives them; what does not agree
is a violation for the auditor.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from tests.sim.auditor import Auditor
from tests.sim.facts import COMPLETE, DEAD_LETTER, IN_DOUBT, Copy, Wish
from tests.sim.node import Node
from tests.sim.reading import Answer

_BUSY = "com.microsoft:server-busy"


@dataclass(eq=False)
class Writing:
    """A session's state, set or being set."""

    value: bytes | None
    asked_ms: float
    #: Until it is answered it may be done at any time.
    done_ms: float = inf
    is_refused: bool = False


class States:
    """The states of sessions. A reader may see the last one written, or one being written."""

    def __init__(self, auditor: Auditor) -> None:
        self._auditor = auditor
        self._written: dict[tuple[str, str], list[Writing]] = {}

    def writing(self, stream: str, session: str, value: bytes) -> Writing:
        self._auditor.note("state", stream, session, value)
        writing = Writing(value, self._auditor.now_ms())
        self._of(stream, session).append(writing)
        return writing

    def wrote(self, writing: Writing, answer: Answer) -> None:
        if answer.status == 200:
            writing.done_ms = self._auditor.now_ms()
        elif answer.condition != IN_DOUBT:
            writing.is_refused = True

    def read(self, stream: str, session: str, asked_ms: int, value: bytes | None) -> None:
        self._auditor.note("state read", stream, session, value)
        known = [writing for writing in self._of(stream, session) if not writing.is_refused]
        if not any(
            writing.value == value and not _is_over(writing, known, asked_ms) for writing in known
        ):
            self._auditor.violation("E6", f"the state of {session} is {value!r}: not what was set")

    def _of(self, stream: str, session: str) -> list[Writing]:
        return self._written.setdefault((stream, session), [Writing(None, 0, 0)])


def _is_over(writing: Writing, known: list[Writing], asked_ms: int) -> bool:
    """Another was written after it, and before anybody asked."""
    return any(writing.done_ms < other.asked_ms and other.done_ms < asked_ms for other in known)


class Reservations:
    """What one consumer has reserved in one stream."""

    def __init__(self, auditor: Auditor, node: Node, stream: str, consumer: str) -> None:
        self._auditor = auditor
        self._node = node
        self._stream = stream
        self._consumer = consumer
        #: The messages of each epoch that the broker has said are reserved.
        self.epochs: dict[int, list[int]] = {}
        #: What a request to give everything back was about, until something tells of it.
        self._released: dict[int, list[int]] = {}

    def reserved(self, epoch: int, ranges: list[int]) -> None:
        """The broker has said that these are set aside."""
        self._auditor.note("reserved", self._stream, epoch, ranges)
        seqs = numbers_in(ranges)
        self._look_whether_released(epoch)
        known = self.epochs.get(epoch, seqs)
        if not set(seqs) <= set(known):
            self._fail(f"epoch {epoch} was {known} and is {seqs}")
        for seq in set(known).difference(seqs):
            self._died(epoch, self._copy(seq))
        self.epochs[epoch] = seqs
        for seq in seqs:
            copy = self._copy(seq)
            where = f"{copy.mid}, number {seq}"
            if copy.removed:
                self._fail(f"{where} is settled and was reserved")
            if self._auditor.is_locked(copy):
                self._fail(f"{where} is locked and was reserved")
            if copy.reserved not in (None, (self._consumer, epoch)):
                self._fail(f"{where} is reserved twice, {copy.reserved} and {epoch}")
            copy.reserved = (self._consumer, epoch)

    def _died(self, epoch: int, copy: Copy) -> None:
        """It left its epoch by a request that was refused half way, if there was one."""
        if not any(wish.asked == DEAD_LETTER for wish in copy.removal_asked):
            self._fail(f"{copy.mid} is in epoch {epoch} no more, and nobody asked for that")
        copy.removed = True
        copy.reserved = None

    def read(self, epoch: int, mids: dict[int, str]) -> None:
        """A reader got these of what is reserved: all of its own must be there."""
        for seq in self.epochs.get(epoch, ()):
            copy = self._copy(seq)
            if mids.get(seq) != copy.mid and not copy.removal_asked:
                self._fail(f"{copy.mid} is reserved and cannot be read")

    def settling(self, epoch: int, returned: Iterable[int], dead: Iterable[int]) -> list[Wish]:
        """A settlement up to an epoch is at the broker."""
        wishes: list[Wish] = []
        for seq in self.up_to(epoch):
            copy = self._copy(seq)
            copy.reserved = None
            if seq not in returned:
                wish = Wish(DEAD_LETTER if seq in dead else COMPLETE)
                copy.removal_asked.add(wish)
                wishes.append(wish)
        return wishes

    def settled(self, epoch: int, wishes: list[Wish], answer: Answer) -> None:
        self._auditor.note("settled epoch", self._stream, epoch, answer.status)
        copies = [self._copy(seq) for seq in self.up_to(epoch)]
        mine = [copy for copy in copies if copy.removal_asked.intersection(wishes)]
        if answer.status == 200:
            for copy in mine:
                copy.removed = True
            for known in [known for known in self.epochs if known <= epoch]:
                del self.epochs[known]
        elif answer.condition != IN_DOUBT:
            # What died before the broker had no more room is dead all the same.
            is_busy = answer.condition == _BUSY
            void = [wish for wish in wishes if not (is_busy and wish.asked == DEAD_LETTER)]
            for copy in mine:
                copy.removal_asked.difference_update(void)
            for known in [known for known in self.epochs if known <= epoch]:
                for seq in self.epochs[known]:
                    self._copy(seq).reserved = (self._consumer, known)

    def ended(self, epoch: int) -> None:
        """An epoch is over, by a request that was done and never answered: nobody knows which."""
        self._released.clear()
        for known in [known for known in self.epochs if known <= epoch]:
            for seq in self.epochs.pop(known):
                self._copy(seq).reserved = None

    def releasing(self) -> None:
        """A request to give everything back is at the broker, which may crash with it."""
        for seqs in self.epochs.values():
            for seq in seqs:
                self._copy(seq).reserved = None
        self._released |= self.epochs
        self.epochs = {}

    def _look_whether_released(self, epoch: int) -> None:
        """An epoch that is outstanding again was never given back, nor were the others."""
        released, self._released = self._released, {}
        if epoch in released:
            self.epochs |= released
            for known, seqs in released.items():
                for seq in seqs:
                    self._copy(seq).reserved = (self._consumer, known)

    def up_to(self, epoch: int) -> list[int]:
        """What is reserved under an epoch and those before it."""
        return [seq for known, seqs in self.epochs.items() if known <= epoch for seq in seqs]

    def _copy(self, seq: int) -> Copy:
        key = (self._node.name, self._stream, seq)
        if key not in self._auditor.copies:
            self._auditor.copies[key] = Copy(self._node.mid(self._stream, seq))
        return self._auditor.copies[key]

    def _fail(self, what: str) -> None:
        self._auditor.violation("L3", f"{self._consumer}: {what}")


def numbers_in(ranges: list[int]) -> list[int]:
    """The sequence numbers of first, last, first, last …"""
    pairs = zip(ranges[::2], ranges[1::2], strict=True)
    return [seq for first, last in pairs for seq in range(first, last + 1)]
