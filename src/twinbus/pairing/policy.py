"""Decides when an entity fails over and comes back, and which backlog queue serves; does nothing.

Facts enter with the time (milliseconds of any steady clock) and, where a choice is made,
with the dice. Events and answers leave. It must not look at a clock, throw dice, log or
send: those who do the I/O ask it and tell it.

    HEALTHY  --first failure that counts-->  SUSPECT      (at once FAILED_OVER if the interval is 0)
    SUSPECT  --success-->                    HEALTHY
    SUSPECT  --interval over, no success-->  FAILED_OVER
    FAILED_OVER  --ping succeeded-->         HEALTHY
"""

import enum
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field

from twinbus.pairing.events import (
    BacklogQueueDropped,
    EntityCleared,
    EntityFailedOver,
    EntityRecovered,
    EntitySuspected,
    Event,
)

Pick = Callable[[Sequence[int]], int]


class State(enum.Enum):
    HEALTHY = "healthy"
    SUSPECT = "suspect"
    FAILED_OVER = "failed over"


@dataclass(slots=True)
class Entity:
    """What is known of one queue or topic of the primary; shared by all its senders (P6)."""

    path: str
    state: State = State.HEALTHY
    #: When it got into this state.
    since_ms: int = 0
    #: The failure that put it under suspicion; shown when the backlog fails too.
    error: BaseException | None = None
    ping_due_ms: int = 0
    #: A ping that has not been answered yet; there is never more than one.
    pinging: bool = False


@dataclass(slots=True)
class BacklogQueue:
    index: int
    name: str
    #: Out of rotation until then; 0 when it never failed.
    dropped_until_ms: int = 0


@dataclass(slots=True)
class Policy:
    """The state of one pair: one per client, so that all its senders learn the same (P6)."""

    failover_interval_ms: int
    ping_interval_ms: int
    queues: list[BacklogQueue]
    entities: dict[str, Entity] = field(default_factory=dict)

    def entity(self, path: str) -> Entity:
        """The one record of an entity; names differ only by more than case (E1)."""
        return self.entities.setdefault(path.casefold(), Entity(path))

    def send_succeeded(self, entity: Entity, now_ms: int) -> list[Event]:
        """A success stops the timer (P5); after failover only a ping leads back (P7)."""
        if entity.state is not State.SUSPECT:
            return []
        self._become_healthy(entity, now_ms)
        return [EntityCleared(entity.path)]

    def send_failed(
        self, entity: Entity, error: BaseException, began_ms: int, now_ms: int
    ) -> list[Event]:
        """Take in a failure that counts (P4, P5) of a send that began at `began_ms`.

        A send that began before the entity became healthy tells of the outage that is
        over: a time-out that ends after the recovery must not start the next failover.
        """
        if entity.state is State.HEALTHY:
            if began_ms < entity.since_ms:
                return []
            entity.error = error
            if self.failover_interval_ms == 0:
                return [self._fail_over(entity, now_ms)]
            entity.state = State.SUSPECT
            entity.since_ms = now_ms
            return [EntitySuspected(entity.path, str(error))]
        if entity.state is State.SUSPECT:
            entity.error = error
            if self._interval_is_over(entity, now_ms):
                return [self._fail_over(entity, now_ms)]
        return []

    def advance(self, now_ms: int) -> list[Event]:
        """Let time pass: every entity whose interval is over fails over, used or not (P5)."""
        return [
            self._fail_over(entity, now_ms)
            for entity in self.entities.values()
            if entity.state is State.SUSPECT and self._interval_is_over(entity, now_ms)
        ]

    def pings_due(self, now_ms: int) -> list[Entity]:
        """Name the entities to ping now; each counts as being pinged from here on (P6)."""
        due = [
            entity
            for entity in self.entities.values()
            if entity.state is State.FAILED_OVER
            and not entity.pinging
            and now_ms >= entity.ping_due_ms
        ]
        for entity in due:
            entity.pinging = True
            entity.ping_due_ms = now_ms + self.ping_interval_ms
        return due

    def ping_ended(self, entity: Entity, succeeded: bool, now_ms: int) -> list[Event]:
        """An answered ping brings every sender back at once, and pings stop (P7)."""
        entity.pinging = False
        if not succeeded or entity.state is not State.FAILED_OVER:
            return []
        failed_over_ms = now_ms - entity.since_ms
        self._become_healthy(entity, now_ms)
        return [EntityRecovered(entity.path, failed_over_ms)]

    def next_deadline_ms(self) -> int | None:
        """When `advance` or `pings_due` will have something to do; None: not before a failure."""
        deadlines = [
            entity.since_ms + self.failover_interval_ms
            if entity.state is State.SUSPECT
            else entity.ping_due_ms
            for entity in self.entities.values()
            if entity.state is State.SUSPECT
            or (entity.state is State.FAILED_OVER and not entity.pinging)
        ]
        return min(deadlines, default=None)

    def choose_queue(
        self, current: int | None, tried: Container[int], pick: Pick, now_ms: int
    ) -> int | None:
        """Give a sender its backlog queue: the one it has while that serves, else a random one.

        Those that a send has `tried` do not serve it again, also when they are back in the
        rotation: it would never come to its end.
        """
        serving = [
            queue.index
            for queue in self.queues
            if now_ms >= queue.dropped_until_ms and queue.index not in tried
        ]
        if current in serving:
            return current
        return pick(serving) if serving else None

    def queue_failed(self, index: int, error: BaseException, now_ms: int) -> list[Event]:
        """Take a backlog queue out of rotation, for every sender of this client (P6).

        It is tried again after the ping interval, the rhythm in which the pair probes what
        failed; a short outage of the secondary would otherwise end the rotation for good.
        """
        queue = next(queue for queue in self.queues if queue.index == index)
        if now_ms < queue.dropped_until_ms:
            return []
        queue.dropped_until_ms = now_ms + self.ping_interval_ms
        return [BacklogQueueDropped(queue.name, str(error))]

    def _interval_is_over(self, entity: Entity, now_ms: int) -> bool:
        return now_ms >= entity.since_ms + self.failover_interval_ms

    def _fail_over(self, entity: Entity, now_ms: int) -> Event:
        entity.state = State.FAILED_OVER
        entity.since_ms = now_ms
        entity.ping_due_ms = now_ms + self.ping_interval_ms
        return EntityFailedOver(entity.path, str(entity.error))

    def _become_healthy(self, entity: Entity, now_ms: int) -> None:
        entity.state = State.HEALTHY
        entity.since_ms = now_ms
        entity.error = None
