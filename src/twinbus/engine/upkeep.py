"""What a stream does unasked: messages expire, come due, die of too many deliveries or are
handed on.

A million of them may be due at one moment, and gigabytes of payload. In one go they would make
everybody wait, and a batch that no journal takes. So the kernel allows so much effort a batch,
and what is left goes on with the next one. On a full disk nothing dies: a dead letter is a message
written anew. What has expired is delivered to nobody meanwhile. What would be written anew on its
way waits as well, or it would take the room that is kept for settlements.
"""

from collections import deque
from heapq import heappop
from typing import Final

from mypy_extensions import mypyc_attr

from twinbus.engine import records
from twinbus.engine.index import ACTIVE, CHUNK_BITS, CHUNK_MASK, LOCKED
from twinbus.engine.kernel import Kernel
from twinbus.engine.shelf import Account, Shelf

# What each thing costs, beyond the payload that is read or written for it. A dead letter takes
# 20 µs, a move 6 µs, to drop a message takes 1 µs.
BURY_EFFORT: Final = 2048
MOVE_EFFORT: Final = 1024
_DROP_EFFORT: Final = 128


@mypyc_attr(allow_interpreted_subclasses=True)
class Owner(Account):
    """What a stream asks of the entity that it belongs to."""

    def dead_letter(
        self, stream: Shelf, seq: int, reason: str, description: str, delivery_count: int,
        now_ms: int,
    ) -> None:  # fmt: skip
        """Move a message that is locked by nobody to the dead-letter queue."""
        raise NotImplementedError

    def activate(self, stream: Shelf, seq: int, now_ms: int) -> None:
        """A scheduled message is due."""
        raise NotImplementedError

    def copies(self) -> int:
        """How many messages become of one that is placed here."""
        return 1

    def writes_anew(self) -> bool:
        """Tell whether a payload that is in the journal may be written again when it is placed
        here."""
        return True

    def forward_waiting(self, now_ms: int) -> None:
        """Hand on what waits in the main stream, as far as this batch allows."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Upkeep(Shelf):
    def __init__(self, kernel: Kernel, owner: Owner, number: int, path: str) -> None:
        super().__init__(kernel, owner, number, path)
        self.owner = owner
        self.dead_letters_expired = False
        #: Messages whose time is over were met, and could not go yet.
        self.has_expired = False
        #: What is active here waits to be handed on, and what comes queues up behind it (E9).
        self.is_leaving = False
        #: Locked by nobody, to be dead-lettered: number, reason, description, delivery count.
        self.dying: deque[tuple[int, str, str, int]] = deque()

    def belong_to(self, owner: Owner) -> None:
        """Say whose stream it is: one read from the journal learns that late."""
        self.owner = owner
        self.account = owner

    def size(self, seq: int) -> int:
        return self.index.chunks[seq >> CHUNK_BITS].sizes[seq & CHUNK_MASK]

    def tend(self, now_ms: int) -> None:
        """Do what is due, as far as this batch allows."""
        kernel = self.kernel
        while self.dying and self._may_bury():
            seq, reason, description, delivery_count = self.dying.popleft()
            if self.index.state(seq) == LOCKED:
                self._bury(seq, reason, description, delivery_count, now_ms)
        while self._is_one_due(now_ms) and kernel.effort_left > 0 and not self._lacks_room():
            due_ms, seq = heappop(self.scheduled)
            if self.due.get(seq) == due_ms:
                size = self.size(seq)
                kernel.effort_left -= MOVE_EFFORT * self.owner.copies() + size
                # It leaves before it arrives under its new number, with the same payload.
                location = self.hold(seq)
                self.owner.activate(self, seq, now_ms)
                kernel.let_go(location, size)
        if self.dying:
            self._go_on(kernel.is_full)
        if self._is_one_due(now_ms):
            self._go_on(self._lacks_room())
        if (self.receivers or self.has_expired) and self.index.expires_min <= now_ms:
            self._expire(now_ms)
        if self.is_leaving:
            self.owner.forward_waiting(now_ms)

    def _is_one_due(self, now_ms: int) -> bool:
        return bool(self.scheduled) and self.scheduled[0][0] <= now_ms

    def _lacks_room(self) -> bool:
        return self.kernel.is_full and self.owner.writes_anew()

    def _expire(self, now_ms: int) -> None:
        """Let go those whose time is over."""
        kernel = self.kernel
        if self.dead_letters_expired and kernel.is_full:
            self.has_expired = True
            kernel.wait_for_room(self)
            return
        count_max = max(kernel.effort_left, 0) // _DROP_EFFORT + 1
        found = self.index.expired(now_ms, self.durable_seq, count_max)
        self.has_expired = len(found) == count_max
        if self.has_expired:
            kernel.put_off(self)
        for seq in found:
            self.expire_if_due(seq, now_ms)

    def expire_if_due(self, seq: int, now_ms: int) -> bool:
        """Drop or dead-letter a message whose time is over (D5); tell whether it is.

        One that must wait for its turn to go is still there, and is not to be delivered.
        """
        expires_ms = self.expires_ms(seq)
        if not expires_ms or expires_ms > now_ms:
            return False
        kernel = self.kernel
        lacks_room = self.dead_letters_expired and kernel.is_full
        if kernel.effort_left <= 0 or lacks_room:
            self.index.note_expiry(seq, expires_ms)
            self.has_expired = True
            self._go_on(lacks_room)
        elif self.dead_letters_expired:
            self._bury(
                seq, "TTLExpiredException", "The message expired and was dead lettered.",
                self.counts.get(seq, 0), now_ms,
            )  # fmt: skip
        else:
            kernel.effort_left -= _DROP_EFFORT
            self.remove(seq, records.EXPIRED)
        return True

    def let_die(
        self, seq: int, reason: str, description: str, delivery_count: int, now_ms: int
    ) -> None:
        """Dead-letter a message that is locked by nobody, now or soon; nobody gets it again."""
        if self._may_bury():
            self._bury(seq, reason, description, delivery_count, now_ms)
            return
        self._note_attempt(seq, delivery_count, ACTIVE)
        self.index.set_state(seq, LOCKED)
        self.dying.append((seq, reason, description, delivery_count))
        self._go_on(self.kernel.is_full)

    def _may_bury(self) -> bool:
        return self.kernel.effort_left > 0 and not self.kernel.is_full

    def _go_on(self, lacks_room: bool) -> None:
        """Go on with the next batch, or when there is room."""
        if lacks_room:
            self.kernel.wait_for_room(self)
        else:
            self.kernel.put_off(self)

    def _bury(
        self, seq: int, reason: str, description: str, delivery_count: int, now_ms: int
    ) -> None:
        self.kernel.effort_left -= BURY_EFFORT + self.size(seq)
        self.owner.dead_letter(self, seq, reason, description, delivery_count, now_ms)

    def close(self) -> None:
        super().close()
        self.has_expired = False
        self.is_leaving = False
        self.dying.clear()
