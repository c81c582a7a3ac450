"""Messages set aside for a consumer, epoch by epoch, until it says that they are done (L3).

A reservation is a fixed set of messages: no lock runs out on it, and whoever asks again for the
same epoch gets the same set. This is the table of one stream's reservations; it is the truth:
records go in, and at the end of replay the states of messages follow from it. What changes it
while the broker runs is in `reserving.py`.
"""

from twinbus.engine import records
from twinbus.engine.index import ACTIVE, RESERVED, Index
from twinbus.engine.records import Log
from twinbus.engine.sessions import SessionTable


class Reservation:
    """One epoch: the messages from the first to the last number of each range, both included."""

    def __init__(
        self, epoch: int, at_ms: int, attempts: int, ranges: list[int], location: int
    ) -> None:
        self.epoch = epoch
        self.at_ms = at_ms
        #: How often somebody has begun to work on it.
        self.attempts = attempts
        #: First, last, first, last …; none when its messages were dead-lettered.
        self.ranges = ranges
        #: Where the journal tells the whole of it.
        self.location = location

    @property
    def is_buried(self) -> bool:
        return not self.ranges

    def pairs(self) -> list[tuple[int, int]]:
        return list(zip(self.ranges[::2], self.ranges[1::2], strict=True))

    def seqs(self) -> list[int]:
        found: list[int] = []
        for first, last in self.pairs():
            found += range(first, last + 1)
        return found

    def message_count(self) -> int:
        return sum([last - first + 1 for first, last in self.pairs()])

    def byte_count(self, index: Index) -> int:
        return sum([index.bytes_between(first, last) for first, last in self.pairs()])


class Reserver:
    """Who reserves, by name; clients say consumer."""

    def __init__(self, name: str) -> None:
        self.name = name
        #: Up to here all is done: those who come late with such an epoch are fenced.
        self.settled_epoch = 0
        #: Where the journal tells that.
        self.location = 0
        #: What is outstanding, by epoch.
        self.epochs: dict[int, Reservation] = {}

    @property
    def last_epoch(self) -> int:
        return max([self.settled_epoch, *self.epochs])

    def outstanding(self) -> list[Reservation]:
        """By epoch: the journal may have told them in another order."""
        return [self.epochs[epoch] for epoch in sorted(self.epochs)]

    def end(self, epoch: int, location: int) -> None:
        """Everything up to an epoch is done with."""
        for known in list(self.epochs):
            if known <= epoch:
                del self.epochs[known]
        self.settled_epoch = max(self.settled_epoch, epoch)
        self.location = location


class Reservations:
    """All reservations of one stream."""

    def __init__(self) -> None:
        self.reservers: dict[str, Reserver] = {}

    def reserver(self, name: str) -> Reserver:
        reserver = self.reservers.get(name)
        if reserver is None:
            reserver = self.reservers[name] = Reserver(name)
        return reserver

    # --- replay and compaction --------------------------------------------------------

    def replay(self, record: bytes, location: int) -> None:
        kind = record[0]
        if kind == records.RESERVED:
            _, name, epoch, at_ms, attempts, ranges = records.read_reserved(record)
            reserver = self.reserver(name)
            if epoch > reserver.settled_epoch:
                reserver.epochs[epoch] = Reservation(epoch, at_ms, attempts, ranges, location)
        elif kind == records.RESERVATION_ATTEMPTED:
            _, name, epoch, attempts, buried = records.read_reservation_attempted(record)
            # Without a reservation: a copy of that, with these attempts, comes later.
            reservation = self.reserver(name).epochs.get(epoch)
            if reservation is not None:
                reservation.attempts = attempts
                if buried:
                    reservation.ranges = []
        else:
            _, name, epoch, _ = records.read_reservation_ended(record)
            self.reserver(name).end(epoch, location)

    def set_aside(self, index: Index, sessions: SessionTable | None) -> None:
        """The journal is read to its end: let the messages be what the table says."""
        for reserver in self.reservers.values():
            for reservation in reserver.outstanding():
                for first, last in reservation.pairs():
                    index.change_states(first, last, ACTIVE, RESERVED)
                    if sessions is not None:
                        for seq in range(first, last + 1):
                            sessions.reserve(seq, reserver)

    def carry(self, limit: int, log: Log, stream: int) -> None:
        """Write anew what the journal tells below a place."""
        for reserver in self.reservers.values():
            if reserver.settled_epoch and reserver.location < limit:
                record = records.reservation_settled(stream, reserver.name, reserver.settled_epoch)
                reserver.location = log.append_carried(record)
            for reservation in reserver.outstanding():
                if reservation.location < limit:
                    record = records.reserved(
                        stream, reserver.name, reservation.epoch, reservation.at_ms,
                        reservation.attempts, reservation.ranges,
                    )  # fmt: skip
                    reservation.location = log.append_carried(record)
