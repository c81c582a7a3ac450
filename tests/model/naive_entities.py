"""The naive broker's things: entities, their streams, messages, sessions and locks."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine_content import Content

from twinbus.core.descriptions import (
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)

MAIN, DEAD, TRANSFER = 0, 1, 2
Described = QueueDescription | TopicDescription | SubscriptionDescription


@dataclass(eq=False)
class NaiveLock:
    until_ms: int
    consumer: str | None
    session: str | None = None


@dataclass(eq=False)
class NaiveMessage:
    content: Content
    state: str
    enqueued_ms: int
    expires_ms: int = 0
    count: int = 0
    due_ms: int = 0
    seq: int = 0
    lock: NaiveLock | None = None
    delayed_until_ms: int = 0
    #: Scheduled before: where, for when, under which number.
    was_due: tuple[int, int, int] | None = None
    #: For whom, and under which epoch, it is set aside.
    reserved_for: tuple[str, int] | None = None

    def is_over(self, now_ms: int) -> bool:
        return bool(self.expires_ms) and self.expires_ms <= now_ms

    @property
    def is_free(self) -> bool:
        return self.state == "active" and self.lock is None and not self.delayed_until_ms


@dataclass(eq=False)
class NaiveSession:
    state: bytes | None = None
    holder: str | None = None
    until_ms: int = 0


@dataclass(eq=False)
class NaiveEpoch:
    at_ms: int
    attempts: int = 0


@dataclass(eq=False)
class NaiveReserver:
    settled: int = 0
    epochs: dict[int, NaiveEpoch] = field(default_factory=dict)

    @property
    def last(self) -> int:
        return max([self.settled, *self.epochs])

    def end(self, epoch: int) -> None:
        self.settled = max(self.settled, epoch)
        self.epochs = {e: known for e, known in self.epochs.items() if e > epoch}


@dataclass(eq=False)
class NaiveStream:
    entity: NaiveEntity
    which: int
    messages: list[NaiveMessage] = field(default_factory=list)
    next_seq: int = 1
    durable_seq: int = 0
    #: Placed, and waiting for the engine to say under which number.
    fresh: list[tuple[int, NaiveMessage | None]] = field(default_factory=list)
    consumers: set[str] = field(default_factory=set)
    seekers: dict[str, int] = field(default_factory=dict)
    sessions: dict[str, NaiveSession] = field(default_factory=dict)
    reservers: dict[str, NaiveReserver] = field(default_factory=dict)

    @property
    def has_sessions(self) -> bool:
        return self.which == MAIN and getattr(self.entity.description, "requires_session", False)

    def find(self, seq: int) -> NaiveMessage | None:
        return next((m for m in self.messages if m.seq == seq), None)

    def deliverable(self, now_ms: int, session: str | None = None) -> list[NaiveMessage]:
        """What may be delivered now, in the order in which it must be."""
        return [
            m
            for m in self.messages
            if m.is_free
            and m.seq <= self.durable_seq
            and not m.is_over(now_ms)
            and not self.is_held_up(m)
            and (session is None or m.content.session_id == session)
        ]

    def is_held_up(self, message: NaiveMessage) -> bool:
        """In a session what comes after a message that is held back waits for it (E6)."""
        session_id = message.content.session_id
        return self.has_sessions and any(
            m.delayed_until_ms and m.seq < message.seq and m.content.session_id == session_id
            for m in self.messages
        )

    def waiting_sessions(self, now_ms: int) -> set[str]:
        ids = {m.content.session_id for m in self.deliverable(now_ms)}
        free = {i for i in ids if i is not None and self.session(i).holder is None}
        return {i for i in free if not self.reserving(i)}

    def reserving(self, session_id: str) -> set[str]:
        """Who has set messages of a session aside."""
        return {
            m.reserved_for[0]
            for m in self.messages
            if m.reserved_for is not None and m.content.session_id == session_id
        }

    def session(self, session_id: str) -> NaiveSession:
        return self.sessions.get(session_id) or NaiveSession()


@dataclass(eq=False)
class NaiveEntity:
    description: Described
    rules: dict[str, RuleDescription] = field(default_factory=dict)
    #: When it last saw a message id, of which dead letter if of one.
    history: dict[tuple[str, str], int] = field(default_factory=dict)
    streams: list[NaiveStream] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.streams = [NaiveStream(self, which) for which in (MAIN, DEAD, TRANSFER)]

    @property
    def path(self) -> str:
        d = self.description
        if isinstance(d, SubscriptionDescription):
            return f"{d.topic}/Subscriptions/{d.name}"
        return d.name

    @property
    def is_topic(self) -> bool:
        return isinstance(self.description, TopicDescription)

    @property
    def forward_to(self) -> str | None:
        return getattr(self.description, "forward_to", None)

    @property
    def sends_off(self) -> bool:
        return self.description.status in ("Disabled", "SendDisabled")

    @property
    def receives_off(self) -> bool:
        return self.description.status in ("Disabled", "ReceiveDisabled")

    @property
    def body_bytes(self) -> int:
        placed = [m for s in self.streams for _, m in s.fresh if m is not None]
        there = [m for s in self.streams for m in s.messages]
        return sum(len(m.content.body) for m in placed + there)
