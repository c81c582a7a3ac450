"""Sessions (E6): messages that belong together, handed in order to one receiver at a time."""

from collections import OrderedDict
from heapq import heapify, heappop, heappush
from typing import Final

from twinbus.engine import records
from twinbus.engine.index import ACTIVE, NEVER, Index
from twinbus.engine.records import Log

# What the journal holds of a state beside itself and its session's id.
_RECORD_BYTES: Final = 20
# Numbers of messages that are gone which may wait in a session until somebody takes it.
_STALE_MAX: Final = 1_000


class Session:
    """One session of a stream: what waits in it, who holds it, what state it carries."""

    def __init__(self, session_id: str) -> None:
        self.id = session_id
        #: Sequence numbers that can be delivered, as a heap: what comes back finds its place.
        self.waiting: list[int] = []
        #: How many of its messages exist in any state.
        self.live = 0
        #: How many of them are reserved; the session is then held by whoever reserved them.
        self.reserved = 0
        self.holder: object = None
        self.locked_until_ms = 0
        #: Numbers of its messages that are locked, in the order in which they were.
        self.locked: dict[int, None] = {}
        #: Those that are held back for a while: what comes after them waits for them.
        self.delayed: set[int] = set()
        self.state: bytes | None = None
        self.state_set_ms = 0
        self.state_location = 0

    def push(self, seq: int) -> None:
        heappush(self.waiting, seq)

    def pop(self) -> int:
        return heappop(self.waiting)

    def first(self) -> int:
        """The first deliverable sequence number, 0 when there is none."""
        return self.waiting[0] if self.waiting else 0

    def is_held_up(self, seq: int) -> bool:
        """Tell whether a message before that one is held back for a while."""
        return bool(self.delayed) and min(self.delayed) < seq

    @property
    def is_idle(self) -> bool:
        """Nothing would be lost if it were forgotten."""
        return self.live == 0 and self.holder is None and self.state is None


class SessionTable:
    """All sessions of one stream."""

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        #: Session of each message that exists.
        self.of_message: dict[int, Session] = {}
        #: Sessions with something to deliver that nobody holds, longest waiting first.
        self.free: dict[str, Session] = {}
        #: Sessions that may have something for their holder.
        self.restless: dict[str, Session] = {}
        #: Sessions that are held, soonest to expire first (all locks last equally long).
        self.held: dict[str, Session] = {}
        #: Sessions with a state, in the order in which the journal has those.
        self.with_state: OrderedDict[str, Session] = OrderedDict()
        #: What the journal must keep for them.
        self.state_bytes = 0

    def get(self, session_id: str) -> Session:
        session = self.sessions.get(session_id)
        if session is None:
            session = self.sessions[session_id] = Session(session_id)
        return session

    def add(self, seq: int, session_id: str) -> Session:
        session = self.get(session_id)
        session.live += 1
        self.of_message[seq] = session
        return session

    def offer(self, session: Session, seq: int) -> None:
        """A message of the session can be delivered (again)."""
        session.push(seq)
        if session.holder is None:
            self.free[session.id] = session
        else:
            self.restless[session.id] = session

    def remove(self, seq: int) -> None:
        session = self.of_message.pop(seq, None)
        if session is not None:
            session.live -= 1
            session.delayed.discard(seq)
            if len(session.waiting) > 2 * session.live + _STALE_MAX:
                self._sweep(session)
            self.forget_if_idle(session)

    def _sweep(self, session: Session) -> None:
        """Most of what waits has expired or was purged, and nobody may ever take the session."""
        there = self.of_message
        session.waiting = [seq for seq in set(session.waiting) if there.get(seq) is session]
        heapify(session.waiting)

    def forget_if_idle(self, session: Session) -> None:
        if session.is_idle:
            self.sessions.pop(session.id, None)
            self.free.pop(session.id, None)

    def hold(self, session: Session, holder: object, locked_until_ms: int) -> None:
        session.holder = holder
        session.locked_until_ms = locked_until_ms
        self.free.pop(session.id, None)
        # Taken out and put back, so that the order stays the order of expiry.
        self.held.pop(session.id, None)
        self.held[session.id] = session

    def release(self, session: Session) -> None:
        session.holder = None
        session.locked_until_ms = 0
        self.held.pop(session.id, None)
        if session.waiting:
            self.free[session.id] = session
        self.forget_if_idle(session)

    # --- states -----------------------------------------------------------------------

    def set_state(self, session: Session, state: bytes | None, at_ms: int, location: int) -> None:
        """`location` is where the journal tells it."""
        self._count_state(session, -1)
        session.state = state
        session.state_set_ms = at_ms
        session.state_location = location
        self._count_state(session, 1)
        self.with_state.pop(session.id, None)
        if state is not None:
            self.with_state[session.id] = session

    def _count_state(self, session: Session, sign: int) -> None:
        if session.state is not None:
            size = len(session.state) + len(session.id.encode()) + _RECORD_BYTES
            self.state_bytes += sign * size

    def carry_state(self, limit: int, log: Log, stream: int) -> int:
        """Write a state anew that lies below a place in the journal; give the bytes written, 0
        when there is none."""
        for session in self.with_state.values():
            if session.state_location >= limit:
                return 0
            record = records.session_state_set(
                stream, session.id.encode(), session.state, session.state_set_ms
            )
            location = log.append_carried(record)
            self.set_state(session, session.state, session.state_set_ms, location)
            return len(record)
        return 0

    # --- reservations -----------------------------------------------------------------

    def can_reserve(self, seq: int, reserver: object, index: Index) -> bool:
        """Tell whether an active message is its session's first, and nobody else holds that."""
        session = self.of_message.get(seq)
        if session is None or (session.holder is not None and session.holder is not reserver):
            return False
        while session.waiting and index.state(session.waiting[0]) != ACTIVE:
            session.pop()
        return session.first() == seq and not session.is_held_up(seq)

    def reserve(self, seq: int, reserver: object) -> None:
        """Set a message aside, the first of its session that can be delivered."""
        session = self.of_message[seq]
        session.reserved += 1
        session.holder = reserver
        session.locked_until_ms = NEVER
        self.free.pop(session.id, None)
        while session.waiting and session.waiting[0] <= seq:
            session.pop()

    def unreserve(self, seq: int) -> None:
        """A message is no longer set aside; with its last one the session is free."""
        session = self.of_message[seq]
        session.reserved -= 1
        if session.reserved == 0:
            self.release(session)
