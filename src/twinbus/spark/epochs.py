"""How a stream sets messages aside: epoch by epoch, each a fixed set, until it is settled.

`Epochs` is the contract that both ways keep. `ReservedEpochs` is the one for this broker, where
a set is one request and no message passes through the driver; `defer.py` has the other one.
"""

from __future__ import annotations

from typing import Any, Protocol

from twinbus.spark.line import Line, UnknownOperationError
from twinbus.spark.ranges import Ranges


class Epochs(Protocol):
    """What a consumer holds in an entity. Everything may be asked twice."""

    #: The state in which messages of an epoch are.
    state: str

    def settled(self) -> int:
        """Give the epoch before the lowest one that is outstanding, or the last one settled."""

    def take(self, epoch: int, count_max: int, number_max: int) -> Ranges:
        """Set the oldest messages aside, none with a number above `number_max`.

        An epoch that is there already is given as it is.
        """

    def begin(self, epoch: int, failures_max: int) -> Ranges:
        """Count one more attempt at an epoch and give its messages.

        None are left once it was begun more than `failures_max` times (0: never): they are
        in the dead-letter queue then, so that one poisonous message cannot stop a stream.
        """

    def settle(self, epoch: int) -> None:
        """Complete everything up to an epoch."""

    def close(self) -> None: ...


class ReservedEpochs:
    state = "reserved"

    def __init__(self, line: Line, consumer: str) -> None:
        self._line = line
        self._consumer = consumer

    def settled(self) -> int:
        for known in self._ask("twinbus:reservations").get("reservations", []):
            if known["consumer"] == self._consumer:
                outstanding = [int(one["epoch"]) for one in known["epochs"]]
                return min(outstanding) - 1 if outstanding else int(known["settled-epoch"])
        return 0

    def take(self, epoch: int, count_max: int, number_max: int) -> Ranges:
        limits = {"message-count": count_max, "to-sequence-number": number_max}
        answer = self._ask("twinbus:reserve", epoch=epoch, **limits)
        return Ranges.from_flat(answer.get("ranges", []))

    def begin(self, epoch: int, failures_max: int) -> Ranges:
        answer = self._ask("twinbus:attempt", epoch=epoch, **{"max-attempts": failures_max})
        return Ranges.from_flat(answer.get("ranges", []))

    def settle(self, epoch: int) -> None:
        self._ask("twinbus:settle-upto", epoch=epoch)

    def close(self) -> None:
        self._line.close()

    def _ask(self, operation: str, **body: Any) -> dict[str, Any]:
        try:
            return self._line.ask_own(operation, {"consumer": self._consumer, **body})
        except UnknownOperationError as error:
            raise RuntimeError(
                f"'{self._line.entity}' is not on a Twinbus broker: read it with the option "
                f"mode=defer. ({error})"
            ) from error
