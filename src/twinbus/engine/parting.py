"""Messages of a reservation that are not to be completed with the rest of it (L4).

A bulk reader that could not use some messages says so when it settles: they return to their
place, or go to the dead-letter queue. That and the completion of the others is one step, but
that many, or on a full disk, wait for their turn to die. They are in no reservation then and
nobody gets them; after a crash they are active again, as what waits to die always is.
"""

from twinbus.core import errors
from twinbus.core.errors import BusError
from twinbus.engine import returning
from twinbus.engine.entities import Holder
from twinbus.engine.reservations import Reservation
from twinbus.engine.stream import Stream


def part(
    holder: Holder,
    stream: Stream,
    consumer: str,
    epoch: int,
    returned: list[int],
    dead: dict[int, tuple[str, str]],
    now_ms: int,
) -> None:
    """Take messages out of the epochs up to one, which the caller settles right after.

    `dead` has reason and description by sequence number. Numbers that are not in these epochs
    are passed over: the same request may come twice.
    """
    if dead and not stream.is_main:
        raise BusError(
            errors.NOT_ALLOWED, f"Nothing can be dead-lettered from '{stream.path}' (D1)."
        )
    table = stream.reservations
    reserver = None if table is None else table.reservers.get(consumer)
    if reserver is None or epoch > reserver.last_epoch:
        return
    leaving = set(returned) | set(dead)
    for reservation in reserver.outstanding():
        if reservation.epoch <= epoch:
            for seq in _take_out(stream, reservation, leaving):
                if seq in dead:
                    reason, description = dead[seq]
                    stream.let_die(seq, reason, description, stream.counts.get(seq, 0), now_ms)
                else:
                    stream.restore(seq)
    returning.hand_on(holder, stream, now_ms)


def _take_out(stream: Stream, reservation: Reservation, leaving: set[int]) -> list[int]:
    """Let go of those that leave; give them in order."""
    order = sorted(leaving)
    taken: list[int] = []
    ranges: list[int] = []
    at = 0
    for first, last in reservation.pairs():
        start = first
        while at < len(order) and order[at] <= last:
            seq = order[at]
            at += 1
            if seq >= first:
                if seq > start:
                    ranges += (start, seq - 1)
                start = seq + 1
                taken.append(seq)
        if start <= last:
            ranges += (start, last)
    if stream.sessions is not None:
        for seq in taken:
            stream.sessions.unreserve(seq)
    reservation.ranges = ranges
    return taken
