"""What a consumer does with reservations: take, try, settle, give back (L3).

Epochs go up by one. An epoch that is settled, or that leaves one out, is refused: a query that
was stopped and lives on somewhere can neither take nor settle what its successor works on.
"""

from typing import Final

from twinbus.core import errors, limits
from twinbus.core.errors import BusError
from twinbus.engine import parting, records, returning
from twinbus.engine.entities import Holder
from twinbus.engine.index import ACTIVE, NEVER, RESERVED
from twinbus.engine.reservations import Reservation, Reservations, Reserver
from twinbus.engine.stream import Stream

BURIED_REASON: Final = "MaxBatchFailuresExceeded"


def reserve(
    holder: Holder, stream: Stream, consumer: str, epoch: int, count_max: int, now_ms: int,
    from_seq: int = 1, to_seq: int = NEVER,
) -> Reservation | None:  # fmt: skip
    """Set the oldest active messages aside, between two numbers; None when there are none.

    An epoch that is outstanding already is given again as it is.
    """
    table = stream.reservations
    if table is None:
        table = Reservations()
    reserver = table.reservers.get(consumer)
    if reserver is None:
        _check_new(table, consumer)
        reserver = Reserver(consumer)
    known = reserver.epochs.get(epoch)
    if known is not None:
        return known
    if epoch != reserver.last_epoch + 1:
        raise _fenced(stream, reserver, epoch)
    if len(reserver.epochs) >= limits.EPOCHS_MAX:
        raise BusError(
            errors.QUOTA_EXCEEDED,
            f"Consumer '{consumer}' of '{stream.path}' has {len(reserver.epochs)} epochs"
            " outstanding: settle or release them first.",
        )
    holder.check_receive()
    ranges = _take(stream, reserver, count_max, from_seq, to_seq, now_ms)
    if not ranges:
        return None
    record = records.reserved(stream.number, consumer, epoch, now_ms, 0, ranges)
    reservation = Reservation(epoch, now_ms, 0, ranges, stream.kernel.log.append(record))
    reserver.epochs[epoch] = reservation
    table.reservers[consumer] = reserver
    stream.reservations = table
    return reservation


def attempt(
    holder: Holder, stream: Stream, consumer: str, epoch: int, attempts_max: int, now_ms: int
) -> Reservation:
    """Count one more attempt at an epoch; one too many sends its messages to their death.

    With no limit (0), and in a dead-letter queue, attempts are only counted.
    """
    reserver = _reserver(stream, consumer)
    reservation = reserver.epochs.get(epoch)
    if reservation is None:
        raise _fenced(stream, reserver, epoch)
    if reservation.is_buried:
        return reservation
    attempts = reservation.attempts + 1
    if 0 < attempts_max < attempts and stream.is_main:
        text = (
            f"Epoch {epoch} of consumer '{consumer}' was begun {attempts} times and"
            f" never settled; it may be begun {attempts_max} times."
        )
        dead = dict.fromkeys(reservation.seqs(), (BURIED_REASON, text))
        parting.bury(holder, stream, consumer, reservation, dead, now_ms)
    reservation.attempts = attempts
    stream.kernel.log.append(
        records.reservation_attempted(
            stream.number, consumer, epoch, attempts, reservation.is_buried
        )
    )
    return reservation


def settle_upto(stream: Stream, consumer: str, epoch: int) -> int:
    """Complete what is reserved under all epochs up to one; give how many messages that were."""
    reserver = _reserver(stream, consumer)
    if epoch > reserver.last_epoch:
        raise _fenced(stream, reserver, epoch)
    if epoch <= reserver.settled_epoch:
        return 0
    count = 0
    for reservation in reserver.outstanding():
        if reservation.epoch <= epoch:
            parting.let_go(stream, reservation.seqs())
            count += reservation.message_count()
            for first, last in reservation.pairs():
                stream.remove_range(first, last, records.COMPLETED)
    record = records.reservation_settled(stream.number, consumer, epoch)
    reserver.end(epoch, stream.kernel.log.append(record))
    return count


def release(holder: Holder, stream: Stream, consumer: str, now_ms: int) -> int:
    """Give everything back that is outstanding; whoever worked on it is fenced."""
    table = stream.reservations
    if table is None or consumer not in table.reservers:
        raise BusError(
            errors.NOT_FOUND,
            f"No consumer '{consumer}' has reserved anything in '{stream.path}'."
            " `twinbus reservations list` shows who has.",
        )
    reserver = table.reservers[consumer]
    outstanding = reserver.outstanding()
    if not outstanding:
        return 0
    ranges: list[int] = []
    count = 0
    for reservation in outstanding:
        ranges += reservation.ranges
        parting.let_go(stream, reservation.seqs())
        count += reservation.message_count()
        for seq in reservation.seqs():
            stream.restore(seq)
    epoch = reserver.last_epoch
    record = records.reservation_released(stream.number, consumer, epoch, ranges)
    reserver.end(epoch, stream.kernel.log.append(record))
    returning.hand_on(holder, stream, now_ms)
    return count


def _take(
    stream: Stream, reserver: Reserver, count_max: int, from_seq: int, to_seq: int, now_ms: int
) -> list[int]:
    """Take the oldest active messages, as ranges. Those whose time is over go as usual (D5)."""
    index = stream.index
    table = stream.sessions
    ranges: list[int] = []
    left = count_max
    seq = max(from_seq, stream.cursor if table is None else 1)
    seq_max = min(to_seq, stream.durable_seq)
    while left and seq <= seq_max:
        first, last = index.find_run(ACTIVE, seq, seq_max)
        if first == 0:
            seq = seq_max + 1
            break
        last = min(last, first + left - 1)
        seq = last + 1
        if table is None and not index.may_expire(first, now_ms):
            index.change_states(first, last, ACTIVE, RESERVED)
            _add(ranges, first, last)
            left -= last - first + 1
            continue
        for one in range(first, last + 1):
            if table is not None and not table.can_reserve(one, reserver, index):
                continue
            if stream.expire_if_due(one, now_ms):
                continue
            index.set_state(one, RESERVED)
            if table is not None:
                table.reserve(one, reserver)
            _add(ranges, one, one)
            left -= 1
    if table is None and from_seq <= stream.cursor:
        stream.cursor = max(stream.cursor, seq)
    return ranges


def _add(ranges: list[int], first: int, last: int) -> None:
    if ranges and ranges[-1] == first - 1:
        ranges[-1] = last
    else:
        ranges += (first, last)


def _reserver(stream: Stream, consumer: str) -> Reserver:
    """Who that is; one that nobody knows has done nothing yet."""
    table = stream.reservations
    known = None if table is None else table.reservers.get(consumer)
    return Reserver(consumer) if known is None else known


def _check_new(table: Reservations, consumer: str) -> None:
    if not 0 < len(consumer) <= limits.CONSUMER_CHARS_MAX:
        raise BusError(
            errors.ARGUMENT_ERROR,
            f"A consumer's name has 1 to {limits.CONSUMER_CHARS_MAX} characters.",
        )
    if len(table.reservers) >= limits.RESERVERS_MAX:
        raise BusError(
            errors.QUOTA_EXCEEDED,
            f"There are {len(table.reservers)} consumers with reservations already: use one of"
            " their names again.",
        )


def _fenced(stream: Stream, reserver: Reserver, epoch: int) -> BusError:
    outstanding = ", ".join([str(known) for known in sorted(reserver.epochs)]) or "none"
    return BusError(
        errors.EPOCH_FENCED,
        f"Consumer '{reserver.name}' of '{stream.path}' asked for epoch {epoch}. Settled is all"
        f" up to epoch {reserver.settled_epoch}, outstanding: {outstanding}; the next is"
        f" {reserver.last_epoch + 1}. Another query goes by this name, what it had was released,"
        " or the checkpoint belongs to another entity. Give each query a name of its own; let go"
        " of what a stopped one holds with `twinbus reservations release`.",
    )
