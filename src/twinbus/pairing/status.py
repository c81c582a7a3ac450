"""What a pair looks like from outside, as plain data for people and monitors."""

from dataclasses import dataclass

from twinbus.pairing.policy import Policy, State


@dataclass(frozen=True, slots=True)
class EntityStatus:
    path: str
    #: healthy, suspect or failed over.
    state: str
    #: How long it has been so.
    for_ms: int
    error: str | None


@dataclass(frozen=True, slots=True)
class QueueStatus:
    name: str
    in_rotation: bool


@dataclass(frozen=True, slots=True)
class PairStatus:
    entities: tuple[EntityStatus, ...]
    backlog_queues: tuple[QueueStatus, ...]
    #: How often each event happened, by its name.
    counters: dict[str, int]

    @property
    def healthy(self) -> bool:
        return all(entity.state == State.HEALTHY.value for entity in self.entities)


def status_of(policy: Policy, counters: dict[str, int], now_ms: int) -> PairStatus:
    return PairStatus(
        tuple(
            EntityStatus(
                entity.path,
                entity.state.value,
                now_ms - entity.since_ms,
                None if entity.error is None else str(entity.error),
            )
            for entity in list(policy.entities.values())
        ),
        tuple(QueueStatus(queue.name, now_ms >= queue.dropped_until_ms) for queue in policy.queues),
        counters,
    )
