"""Sets messages aside with the verbs that every Service Bus has: receive, defer, and later
receive the deferred ones in delete mode.

A message of an epoch is deferred and carries in a property whose it is. So the broker alone
knows what is held, and a scan of deferred headers at the start finds it again. Slower than
reserving, since every message passes through the driver twice, and without fencing: of two
queries under one name both would go on. Entities with sessions are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from twinbus.amqp.types import ARRAY_OF_LONG, ARRAY_OF_UUID, AmqpArray, UInt
from twinbus.client import ClientError, Refused
from twinbus.core import errors, names
from twinbus.spark.line import Line
from twinbus.spark.options import SEQUENCE_MAX, ReadOptions
from twinbus.spark.patience import PATIENCE_S, Patience
from twinbus.spark.ranges import Ranges
from twinbus.spark.reading import MessagesGoneError, Pages

if TYPE_CHECKING:
    from twinbus.spark.intake import Intake

RECEIVE_DEFERRED = "com.microsoft:receive-by-sequence-number"
SETTLE = "com.microsoft:update-disposition"
BURIED_REASON = "MaxBatchFailuresExceeded"
#: The properties that say whose a message is. Readers of the stream do not see them.
HELD, BURIED = MARKS = ("x-twinbus-held", "x-twinbus-buried")

_DELETE, _LOCK = UInt(0), UInt(1)
# Answers hold the messages, so this bounds them too.
_AT_ONCE = 50


@dataclass
class Held:
    """The messages of one epoch, and how often it was begun."""

    numbers: list[int] = field(default_factory=list)
    attempts: int = 0

    @property
    def ranges(self) -> Ranges:
        return Ranges.from_numbers(self.numbers)


class DeferredEpochs:
    state = "deferred"

    def __init__(self, line: Line, options: ReadOptions) -> None:
        self._line = line
        self._options = options
        self._intake: Intake | None = None
        #: None: not known, the next one to ask must look.
        self._held: dict[int, Held] | None = None

    def settled(self) -> int:
        held = self._known()
        return min(held) - 1 if held else 0

    def take(self, epoch: int, count_max: int, number_max: int) -> Ranges:
        patience = Patience(PATIENCE_S)
        while epoch not in self._known():
            try:
                return self._take(epoch, count_max, number_max)
            except ClientError as error:
                # Some may be deferred already; the scan will tell.
                self._held = None
                if not error.retryable or not patience.pause():
                    raise
        return self._known()[epoch].ranges

    def begin(self, epoch: int, failures_max: int) -> Ranges:
        held = self._known().get(epoch)
        if held is None:
            held = self._known()[epoch] = self._buried(epoch)
        if not held.numbers:
            return Ranges()
        held.attempts += 1
        if 0 < failures_max < held.attempts and self._address.stream == names.MAIN_STREAM:
            self._bury(epoch, held)
        else:
            self._count_attempt(epoch, held)
        return held.ranges

    def settle(self, epoch: int) -> None:
        held = self._known()
        for old in [known for known in held if known <= epoch]:
            self._delete(held.pop(old).numbers)

    def close(self) -> None:
        if self._intake is not None:
            self._intake.close()
        self._line.close()

    # --- what is held -----------------------------------------------------------------

    @property
    def _address(self) -> names.Address:
        return names.parse_address(self._options.entity)

    def _known(self) -> dict[int, Held]:
        if self._held is None:
            self._held = _scan(self._line, HELD, self._options.consumer, self.state)
        return self._held

    def _buried(self, epoch: int) -> Held:
        """An epoch without messages is right only if they are in the dead-letter queue."""
        options = self._options
        graves = f"{self._address.entity}/{names.DEAD_LETTER}"
        with Line(options.connection_string, graves, f"spark-{options.consumer}") as line:
            if epoch not in _scan(line, BURIED, options.consumer, ""):
                raise MessagesGoneError(
                    f"The messages of epoch {epoch} of consumer '{options.consumer}' on "
                    f"'{options.entity}' are neither deferred nor in the dead-letter queue: "
                    "somebody deleted them. To go on without them, begin a new checkpoint."
                )
        return Held()

    # --- changing it ------------------------------------------------------------------

    def _take(self, epoch: int, count_max: int, number_max: int) -> Ranges:
        known = self._known()
        held = Held()
        mark = {HELD: f"{epoch} 0 {self._options.consumer}"}
        for received in self._receive(count_max):
            wanted = {number: token for number, token in received if number <= number_max}
            self._settle_locks([*wanted.values()], "defered", {"properties-to-modify": mark})
            held.numbers += wanted
            late = [token for number, token in received if number > number_max]
            if late:
                self._settle_locks(late, "abandoned", {})
                break
        if held.numbers:
            # In the order in which a scan finds them: the first one keeps the count of attempts.
            held.numbers.sort()
            known[epoch] = held
        return self._known().get(epoch, Held()).ranges

    def _receive(self, count_max: int) -> Iterator[list[tuple[int, UUID]]]:
        if self._intake is None:
            # The SDK takes long to import, and tasks, which only read, never need it.
            from twinbus.spark.intake import Intake

            self._intake = Intake(self._options.connection_string, self._options.entity)
        return self._intake.receive(count_max)

    def _settle_locks(self, tokens: Sequence[UUID], status: str, more: dict[str, Any]) -> None:
        """Settle messages by their lock tokens.

        A lock that is gone may mean that the broker did it and its answer was lost, or that it
        did not: what is held must then be looked up.
        """
        for chunk in _chunks(tokens):
            try:
                self._ask_settle(chunk, status, more)
            except Refused as refusal:
                if refusal.condition != errors.MESSAGE_LOCK_LOST.condition:
                    raise
                for token in chunk:
                    with suppress(Refused):
                        self._ask_settle([token], status, more)
                self._held = None

    def _ask_settle(self, tokens: list[UUID], status: str, more: dict[str, Any]) -> None:
        body = {"disposition-status": status, "lock-tokens": AmqpArray(tokens, ARRAY_OF_UUID)}
        self._line.ask(SETTLE, body | more)

    def _fetch(self, numbers: Sequence[int], mode: UInt) -> list[UUID]:
        """Receive deferred messages by number; give their lock tokens, if there are any."""
        body = {
            "sequence-numbers": AmqpArray(numbers, ARRAY_OF_LONG),
            "receiver-settle-mode": mode,
        }
        try:
            found = self._line.ask(RECEIVE_DEFERRED, body).get("messages", [])
        except Refused as refusal:
            half = len(numbers) // 2
            if refusal.condition != errors.MESSAGE_TOO_LARGE.condition or not half:
                raise
            return self._fetch(numbers[:half], mode) + self._fetch(numbers[half:], mode)
        return [entry["lock-token"] for entry in found if "lock-token" in entry]

    def _count_attempt(self, epoch: int, held: Held) -> None:
        mark = {HELD: f"{epoch} {held.attempts} {self._options.consumer}"}
        # Locked since a crash between these two requests: this attempt goes uncounted.
        with suppress(Refused):
            tokens = self._fetch(held.numbers[:1], _LOCK)
            self._settle_locks(tokens, "defered", {"properties-to-modify": mark})

    def _bury(self, epoch: int, held: Held) -> None:
        text = (
            f"Epoch {epoch} of consumer '{self._options.consumer}' was begun {held.attempts} times "
            "and never settled."
        )
        more = {
            "deadletter-reason": BURIED_REASON,
            "deadletter-description": text,
            "properties-to-modify": {HELD: "", BURIED: f"{epoch} 0 {self._options.consumer}"},
        }
        # The one with the count goes last: a crash before that must find it.
        for chunk in _chunks(held.numbers[::-1]):
            self._settle_locks(self._fetch(chunk, _LOCK), "suspended", more)
        if self._held is None and epoch in self._known():
            raise RuntimeError(f"{text} Not all of it could be dead-lettered: begin it again.")
        held.numbers = []
        self._known()[epoch] = held

    def _delete(self, numbers: Sequence[int]) -> None:
        for chunk in _chunks(numbers):
            try:
                self._fetch(chunk, _DELETE)
            except Refused as refusal:
                if refusal.condition != errors.MESSAGE_NOT_FOUND.condition:
                    raise
                # It was done before, and the answer lost: one missing refuses them all.
                for number in chunk:
                    with suppress(Refused):
                        self._fetch([number], _DELETE)
                self._held = None


def without_marks(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Take our own properties out: the stream shows messages as their senders made them."""
    at = batch.schema.get_field_index("application_properties")
    column = batch.column(at)
    if column.null_count == len(column):
        return batch
    keep = ~np.isin(np.asarray(column.keys), MARKS)
    # Where each row's pairs begin and end among all pairs, and then among those kept.
    passed = np.concatenate(([0], np.cumsum(keep)))
    offsets = pa.array(passed[np.asarray(column.offsets)], pa.int32())
    kept = pa.array(keep)
    made = pa.MapArray.from_arrays(offsets, column.keys.filter(kept), column.items.filter(kept))
    return batch.set_column(at, batch.schema.field(at), made)


def _scan(line: Line, mark: str, consumer: str, state: str) -> dict[int, Held]:
    """Find by their headers what belongs to a consumer, by epoch."""
    found: dict[int, Held] = {}
    pages = Pages(line, include_body=False, states=(state,) if state else ())
    for batch in pages.all(1, SEQUENCE_MAX):
        numbers = batch["sequence_number"].to_pylist()
        properties = batch["application_properties"].to_pylist()
        for number, pairs in zip(numbers, properties, strict=True):
            epoch, _, rest = dict(pairs or ()).get(mark, "").partition(" ")
            attempts, _, owner = rest.partition(" ")
            if owner == consumer:
                held = found.setdefault(int(epoch), Held())
                held.numbers.append(number)
                held.attempts = max(held.attempts, int(attempts))
    return found


def _chunks(items: Sequence[Any]) -> Iterator[list[Any]]:
    rest = iter(items)
    while chunk := list(islice(rest, _AT_ONCE)):
        yield chunk
