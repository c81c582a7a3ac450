"""Who is attached to a stream, and what a receiver holds.

An `Attachment` is one link as the engine sees it; a `Consumer` is one that receives. The
server's bridge gives both a body. A `Lock` is one locked message: there is an object for
each of those, and for no other message.
"""

from typing import Final

from mypy_extensions import mypyc_attr

from twinbus.core.errors import BusError
from twinbus.engine.index import Chunk
from twinbus.engine.observer import DeliveryRun, Observer
from twinbus.engine.sessions import Session

# What a lock token tells of a sequence number.
TOKEN_SEQ_BITS: Final = 40
TOKEN_SEQ_MASK: Final = (1 << TOKEN_SEQ_BITS) - 1


@mypyc_attr(allow_interpreted_subclasses=True)
class Attachment:
    def detach(self, error: BusError) -> None:
        """The entity is gone or no longer takes part: the link is to be told."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Consumer(Attachment):
    def __init__(self, peek_lock: bool, client: str = "") -> None:
        self.peek_lock = peek_lock
        #: Whose it is: the name that its connection goes by.
        self.client = client
        #: The session it holds, on entities that require sessions.
        self.session: Session | None = None
        #: Whether it stands in its stream's line.
        self.in_line = False
        self._run: DeliveryRun | None = None

    def note_delivery(
        self, observer: Observer, stream: int, chunk: Chunk, seq: int, delivery_count: int,
        now_ms: int,
    ) -> None:  # fmt: skip
        """A message goes to it: observe that (L1)."""
        run = self._run
        if (
            run is None
            or run.chunk is not chunk
            or run.next_seq != seq
            or run.delivery_count != delivery_count
        ):
            run = DeliveryRun(stream, chunk, seq, delivery_count, now_ms, self.client)
            self._run = run
            observer.begin_run(run)
        elif run.now_ms != now_ms:
            run.note()
            run.now_ms = now_ms
        run.next_seq = seq + 1
        if run.is_noted:
            observer.run_grew(run)

    def can_take(self) -> bool:
        """Tell whether it has credit, and its connection takes more."""
        raise NotImplementedError

    def deliver(
        self, seq: int, stored: bytes, enqueued_ms: int, delivery_count: int, lock: "Lock | None"
    ) -> None:
        raise NotImplementedError

    def session_found(self, session: Session) -> None:
        """The session that a waiting receiver asked for is its own now."""
        raise NotImplementedError

    def session_not_found(self) -> None:
        """No session came free in the time the receiver would wait."""
        raise NotImplementedError

    def session_lost(self) -> None:
        """The session's lock is over; the link is to be told."""
        raise NotImplementedError


class Lock:
    """An exclusive hold on one message (R2)."""

    def __init__(
        self, seq: int, number: int, locked_until_ms: int, delivery_count: int,
        consumer: Consumer | None, session: Session | None, deferred: bool,
    ) -> None:  # fmt: skip
        self.seq = seq
        #: The low half of the lock token; the high half is the stream's own. As much of the
        #: sequence number as there is room for finds the message, the lock's number tells
        #: whether it is locked anew.
        self.low = (seq & TOKEN_SEQ_MASK) << 24 | number & 0xFFFFFF
        self.locked_until_ms = locked_until_ms
        self.delivery_count = delivery_count
        #: Who received it; None when it was fetched by number.
        self.consumer = consumer
        self.session = session
        #: It was deferred before, and goes back to that.
        self.deferred = deferred
        #: The delivery that carries the lock; the bridge's own.
        self.delivery_id = -1
