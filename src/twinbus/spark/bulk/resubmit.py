"""Dead letters by the million: through a transformation, and back to where they came from (L4).

A dead letter is completed only after its repaired copy was accepted. The message id stays. A
target with duplicate detection may know it from before the death and would drop the copy, so
that the message would be nowhere: each copy says which dead letter it is, and the broker drops
only what is the same dead letter again. So such a target has it once even when a run was killed
in between; without that it may be there twice, and is never lost. What the transformation does
not want, what cannot be made into a message, and what the target refuses, stays in the
dead-letter queue.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from twinbus.client import Client, ConnectionLost
from twinbus.core import names
from twinbus.spark import schema
from twinbus.spark.bulk import rounds, transform
from twinbus.spark.bulk.arrow import map_batches
from twinbus.spark.bulk.outbox import Outbox
from twinbus.spark.line import Line
from twinbus.spark.messages import RowError, to_messages_or_errors
from twinbus.spark.patience import PATIENCE_S
from twinbus.spark.reading import Pages

CONSUMER = "twinbus-pipeline-resubmit"
#: Why a dead letter stays of which the transformation has made no message.
NO_MESSAGE = "NoMessage"


@dataclass(frozen=True)
class Work:
    """What tasks need to know; it travels to them."""

    connection_string: str = field(repr=False)
    #: The dead-letter queue, or a queue that dead letters were forwarded to.
    source: str
    #: One target for all of them; None: each goes back to where it died.
    target: str | None

    def home(self, died_in: str | None) -> str:
        """Where a dead letter is sent: to its queue, or its subscription's topic."""
        if self.target is not None:
            return self.target
        entity = died_in or names.parse_address(self.source).entity
        pair = names.split_subscription(entity)
        return pair[0] if pair else entity


def dead_letter_path(entity: str) -> str:
    """The queue of an entity's dead letters; a path that names a sub-queue stays."""
    address = names.parse_address(entity)
    if address.stream != names.MAIN_STREAM:
        return address.path
    return names.Address(address.entity, names.DEAD_LETTER_STREAM).path


def run(
    spark: SparkSession,
    work: Work,
    change: transform.Transformation,
    where: str | None,
    on_round: Callable[[rounds.Tally], None],
) -> rounds.Tally:
    """Resubmit what is there now; gives what became of it."""

    def one_round(tasks: DataFrame) -> DataFrame:
        messages = map_batches(tasks, partial(_read, work), schema.DDL)
        changed = change(transform.without_death(messages), transform.condition(where))
        return map_batches(changed, partial(_send, work), rounds.FATES_DDL)

    # An expression that makes no sense is found before anything is set aside.
    one_round(spark.createDataFrame([], rounds.TASKS_DDL)).schema  # noqa: B018
    with Line(work.connection_string, work.source, CONSUMER) as line:
        return rounds.run(spark, [rounds.Holding(line, CONSUMER)], one_round, on_round)


def _read(work: Work, batch: Any) -> Iterator[Any]:
    for entity, ranges in rounds.tasks_of(batch):
        with Line(work.connection_string, entity, CONSUMER) as line:
            yield from Pages(line, include_body=True, states=("reserved",)).exactly(ranges)


def _send(work: Work, batch: Any) -> Iterator[Any]:
    def connect() -> Client:
        return Client.connect(work.connection_string, container_id=CONSUMER)

    with Outbox(connect, PATIENCE_S) as outbox:
        yield _send_batch(work, outbox, batch)


def _send_batch(work: Work, outbox: Outbox, batch: Any) -> Any:
    wanted = batch.column(transform.WANTED)
    chosen = batch.filter(wanted)
    rejected = batch.filter(pc.invert(wanted))
    faults = rejected.column(transform.FAULT).to_pylist()
    others: list[rounds.Fate] = [
        (number, rounds.RETURNED, NO_MESSAGE if fault else None, fault)
        for number, fault in zip(
            rejected.column("sequence_number").to_pylist(), faults, strict=True
        )
    ]
    numbers = chosen.column("sequence_number").to_pylist()
    died_in = chosen.column("dead_letter_source").to_pylist()
    by_target: dict[str, list[tuple[int, bytes]]] = defaultdict(list)
    # A dead letter without an id gets one that is the same in every attempt.
    encoded = to_messages_or_errors(
        chosen, lambda row: f"{work.source}-{numbers[row]}", _marks(work.source, chosen)
    )
    for number, source, message in zip(numbers, died_in, encoded, strict=True):
        if isinstance(message, RowError):
            others.append((number, rounds.RETURNED, NO_MESSAGE, str(message)))
        else:
            by_target[work.home(source)].append((number, message))
    sent = 0
    for target, messages in by_target.items():
        fates = outbox.deliver(target, [message for _, message in messages])
        for (number, _), refusal in zip(messages, fates, strict=True):
            if refusal is None:
                sent += 1
            elif isinstance(refusal, ConnectionLost):
                # This broker has the dead letters as well: nothing can be settled now.
                raise refusal
            else:
                others.append((number, rounds.RETURNED, refusal.condition, refusal.description))
    return rounds.fates_batch(work.source, sent, others)


def _marks(source: str, dead_letters: Any) -> list[str]:
    """What tells each dead letter from all others, and is the same in every attempt.

    The time is for a queue that was deleted and made again, which counts from 1 again.
    """
    numbers = dead_letters.column("sequence_number").to_pylist()
    times = dead_letters.column("enqueued_ts").cast(pa.int64()).to_pylist()
    return [
        hashlib.sha256(f"{source.casefold()} {number} {time_us}".encode()).hexdigest()[:32]
        for number, time_us in zip(numbers, times, strict=True)
    ]
