"""Messages of a reservation that are not to be completed with the rest of it (L3, L4).

A bulk reader that could not use some messages says so when it settles: they return to their
place, or go to the dead-letter queue. Whoever is told that they died must not see them again,
so they die in the batch that is answered. What one batch cannot take is refused, and dies when
the same is asked again.
"""

from twinbus.core import errors
from twinbus.core.errors import BusError
from twinbus.engine import records, returning
from twinbus.engine.entities import Holder
from twinbus.engine.reservations import Reservation
from twinbus.engine.stream import Stream
from twinbus.engine.upkeep import BURY_EFFORT

#: Reason and description by sequence number.
Deaths = dict[int, tuple[str, str]]


def part(
    holder: Holder,
    stream: Stream,
    consumer: str,
    epoch: int,
    returned: list[int],
    dead: Deaths,
    now_ms: int,
) -> None:
    """Take messages out of the epochs up to one, which the caller settles right after.

    Numbers that are not in these epochs are passed over: the same request may come twice.
    """
    if dead and not stream.is_main:
        raise BusError(
            errors.NOT_ALLOWED, f"Nothing can be dead-lettered from '{stream.path}' (D1)."
        )
    table = stream.reservations
    reserver = None if table is None else table.reservers.get(consumer)
    if reserver is None or epoch > reserver.last_epoch:
        return
    ending = [each for each in reserver.outstanding() if each.epoch <= epoch]
    for reservation in ending:
        bury(holder, stream, consumer, reservation, dead, now_ms)
    leaving = sorted(returned)
    for reservation in ending:
        for seq in _take_out(stream, reservation, leaving):
            stream.restore(seq)
    returning.hand_on(holder, stream, now_ms)


def bury(
    holder: Holder,
    stream: Stream,
    consumer: str,
    reservation: Reservation,
    dead: Deaths,
    now_ms: int,
) -> None:
    """Move messages of a reservation to the dead-letter queue.

    Refused as busy if that is more than this batch can take. What it took is dead then, and
    the rest is reserved as before.
    """
    wanted, _ = _split(reservation, sorted(dead))
    if not wanted:
        return
    kernel = stream.kernel
    if kernel.is_full:
        raise BusError(
            errors.SERVER_BUSY,
            "The broker's disk is full: no message can be dead-lettered. Try again when there is"
            " room.",
        )
    dying: list[int] = []
    for seq in wanted:
        if not kernel.takes_effort(BURY_EFFORT + stream.size(seq)):
            break
        dying.append(seq)
    for seq in _take_out(stream, reservation, dying):
        reason, description = dead[seq]
        holder.bury(stream, seq, reason, description, {}, stream.counts.get(seq, 0), now_ms)
    # Also when all are dead: the next epoch of the same request may be refused, and then this
    # one is not settled either.
    record = records.reserved(
        stream.number, consumer, reservation.epoch, reservation.at_ms, reservation.attempts,
        reservation.ranges,
    )  # fmt: skip
    reservation.location = kernel.log.append(record)
    if len(dying) < len(wanted):
        raise BusError(
            errors.SERVER_BUSY,
            f"That is too much at once: {len(wanted) - len(dying)} messages are still to be"
            " dead-lettered. Ask the same again in a moment.",
        )


def _take_out(stream: Stream, reservation: Reservation, leaving: list[int]) -> list[int]:
    """Let go of those that leave, given in order; give those that were there."""
    taken, reservation.ranges = _split(reservation, leaving)
    let_go(stream, taken)
    return taken


def let_go(stream: Stream, seqs: list[int]) -> None:
    """These keep their sessions no longer: the caller says what becomes of them."""
    if stream.sessions is not None:
        for seq in seqs:
            stream.sessions.unreserve(seq)
        # Somebody may wait for such a session.
        stream.kernel.wake(stream)


def _split(reservation: Reservation, leaving: list[int]) -> tuple[list[int], list[int]]:
    """Which of these are in the reservation, and the ranges that stay without them."""
    taken: list[int] = []
    ranges: list[int] = []
    at = 0
    for first, last in reservation.pairs():
        start = first
        while at < len(leaving) and leaving[at] <= last:
            seq = leaving[at]
            at += 1
            # A number may have been given twice.
            if seq >= start:
                if seq > start:
                    ranges += (start, seq - 1)
                start = seq + 1
                taken.append(seq)
        if start <= last:
            ranges += (start, last)
    return taken, ranges
