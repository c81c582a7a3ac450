"""The syphon on Spark: drains all backlog queues of a secondary at once (P8, P11).

Every message goes to its own entity in the primary, as it was meant; it leaves the backlog only
after the primary accepted it. One that says no destination, or that the primary refuses for
good, is dead-lettered in the backlog with the reason; one that it does not take now stays.

How a message is restored, and which refusals are for good, is the pairing library's to say; it
is handed in, so that this package does not depend on it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from pyspark.sql import SparkSession

from twinbus.amqp.errors import DecodeError
from twinbus.client import Client, ClientError, Refused
from twinbus.forms.message_form import sequence_number
from twinbus.spark.bulk import rounds
from twinbus.spark.bulk.arrow import map_batches
from twinbus.spark.bulk.outbox import Outbox
from twinbus.spark.line import Line
from twinbus.spark.ranges import Ranges
from twinbus.spark.reading import PAGE_BYTES, READ, MessagesGoneError

MISSING_PATH = "MissingPath"
CONSUMER = "twinbus-pipeline-syphon"


class Restored(Protocol):
    """A message as its sender meant it."""

    @property
    def path(self) -> str: ...

    @property
    def payload(self) -> bytes: ...


@dataclass(frozen=True)
class Work:
    """What tasks need to know; it travels to them."""

    primary: str
    secondary: str
    #: Raises a ValueError, whose `reason` is what to dead-letter the message under.
    restore: Callable[[bytes], Restored]
    #: Conditions of refusals that no waiting will change.
    for_good: frozenset[str]


def run(
    spark: SparkSession,
    work: Work,
    queues: Sequence[str],
    on_round: Callable[[rounds.Tally], None],
) -> rounds.Tally:
    """Drain these backlog queues; gives what became of the messages."""
    lines = [Line(work.secondary, queue, CONSUMER) for queue in queues]
    try:
        holdings = [rounds.Holding(line, CONSUMER) for line in lines]
        move = partial(_move_all, work)
        return rounds.run(
            spark, holdings, lambda tasks: map_batches(tasks, move, rounds.FATES_DDL), on_round
        )
    finally:
        for line in lines:
            line.close()


def _move_all(work: Work, batch: Any) -> Iterator[Any]:
    """The function of a task: ranges of backlog queues come in, fates come out."""
    with Outbox(lambda: Client.connect(work.primary, container_id=CONSUMER), 0) as outbox:
        for queue, ranges in rounds.tasks_of(batch):
            with Line(work.secondary, queue, CONSUMER) as line:
                for numbers, payloads in _pages(line, ranges):
                    yield _move(work, outbox, queue, numbers, payloads)


def _pages(line: Line, wanted: Ranges) -> Iterator[tuple[list[int], list[bytes]]]:
    """Reserved messages as they are encoded, with their numbers; one that is gone is an error."""
    for low, high in wanted.pairs:
        while low <= high:
            body = {"from": low, "to": high, "byte-count": PAGE_BYTES, "states": ["reserved"]}
            payloads = line.ask_own(READ, body).get("messages", [])
            numbers = [sequence_number(payload) for payload in payloads]
            last = numbers[-1] if numbers else high
            if len(numbers) != last - low + 1:
                raise MessagesGoneError(
                    f"Some of the messages {low} to {last} of '{line.entity}', which were set"
                    " aside, are gone: somebody deleted them. Run the command again."
                )
            yield numbers, payloads
            low = last + 1


def _move(work: Work, outbox: Outbox, queue: str, numbers: list[int], payloads: list[bytes]) -> Any:
    others: list[rounds.Fate] = []
    by_target: dict[str, list[tuple[int, bytes]]] = defaultdict(list)
    for number, payload in zip(numbers, payloads, strict=True):
        try:
            restored = work.restore(payload)
        except (ValueError, DecodeError) as error:
            reason = getattr(error, "reason", MISSING_PATH)
            others.append((number, rounds.DEAD_LETTERED, reason, str(error)))
        else:
            by_target[restored.path].append((number, restored.payload))
    sent = 0
    for target, messages in by_target.items():
        fates = outbox.deliver(target, [payload for _, payload in messages])
        for (number, _), refusal in zip(messages, fates, strict=True):
            if refusal is None:
                sent += 1
            else:
                others.append((number, *_verdict(work, refusal)))
    return rounds.fates_batch(queue, sent, others)


def _verdict(work: Work, refusal: ClientError) -> tuple[str, str, str]:
    """Fate, reason and description of a message that the primary did not take."""
    if not isinstance(refusal, Refused):
        return rounds.RETURNED, "unreachable", str(refusal)
    for_good = refusal.condition in work.for_good
    fate = rounds.DEAD_LETTERED if for_good else rounds.RETURNED
    return fate, refusal.condition, refusal.description
