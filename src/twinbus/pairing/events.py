"""Each thing that happens to a pair, as data (past tense). They go to the user's callback,
to the log and into the counters; nothing in the library reads them back."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EntitySuspected:
    """A send failed in a way that counts; the failover timer runs (P5)."""

    path: str
    error: str


@dataclass(frozen=True, slots=True)
class EntityFailedOver:
    """Sends to this entity go to the backlog from now on (P6)."""

    path: str
    error: str


@dataclass(frozen=True, slots=True)
class EntityCleared:
    """A send succeeded before the failover interval was over (P5)."""

    path: str


@dataclass(frozen=True, slots=True)
class EntityRecovered:
    """A ping got through; every sender is back on the primary (P7)."""

    path: str
    failed_over_ms: int


@dataclass(frozen=True, slots=True)
class PingSent:
    """A ping was answered (`error` is None) or not (P10)."""

    path: str
    error: str | None


@dataclass(frozen=True, slots=True)
class MessagesBacklogged:
    """Messages for this entity were stored in a backlog queue (P8)."""

    path: str
    queue: str
    count: int


@dataclass(frozen=True, slots=True)
class BacklogQueueDropped:
    """A send to a backlog queue failed; no sender of this client uses it for a while (P6)."""

    queue: str
    error: str


@dataclass(frozen=True, slots=True)
class MessageSyphoned:
    """A message is in its entity in the primary and no longer in the backlog (P11)."""

    path: str
    queue: str


@dataclass(frozen=True, slots=True)
class SyphonDeferred:
    """The primary did not take a message now; its entity is left alone for a while (P11)."""

    path: str
    queue: str
    error: str


@dataclass(frozen=True, slots=True)
class MessageDeadLettered:
    """A backlog message that can never be delivered went to the dead-letter queue (P11)."""

    queue: str
    reason: str
    description: str


@dataclass(frozen=True, slots=True)
class PumpFailed:
    """A pump lost its backlog queue; it tries again after the retry interval (P11)."""

    queue: str
    error: str


@dataclass(frozen=True, slots=True)
class PairFaulted:
    """One client went away and the other did not follow in time; it was closed (P12)."""

    gone: str
    closed: str


Event = (
    EntitySuspected
    | EntityFailedOver
    | EntityCleared
    | EntityRecovered
    | PingSent
    | MessagesBacklogged
    | BacklogQueueDropped
    | MessageSyphoned
    | SyphonDeferred
    | MessageDeadLettered
    | PumpFailed
    | PairFaulted
)
