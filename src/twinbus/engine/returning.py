"""Messages that were set aside, deferred, reserved or dead, and wait where they were again."""

from twinbus.core import errors
from twinbus.core.errors import BusError
from twinbus.engine import records
from twinbus.engine.entities import Holder
from twinbus.engine.index import ACTIVE
from twinbus.engine.message import Message
from twinbus.engine.stream import Stream


def resubmit(holder: Holder, stream: Stream, seqs: list[int], now_ms: int) -> int:
    """Put dead letters back where they died: into this queue, or this one subscription.

    A message leaves the dead-letter queue and enters its own in one step; it is never in
    neither place. Those that are locked or gone are passed over, and so are those that this
    entity could hand to nobody, for want of a session id. Gives how many went: as many as one
    batch may take. Whoever wants all asks again until none goes.
    """
    if stream.is_main:
        raise BusError(errors.NOT_ALLOWED, f"'{stream.path}' holds no dead letters to send again.")
    count = 0
    for seq in seqs:
        if seq > stream.durable_seq or stream.index.state(seq) != ACTIVE:
            continue
        message = Message(stream.stored(seq))
        if holder.main.sessions is not None and message.session_id() is None:
            continue
        if not stream.kernel.takes_effort(len(message.stored)):
            break
        message.revive(stream.number, seq)
        stream.remove(seq, records.FORWARDED)
        holder.accept(message, now_ms, message.ttl_ms, 0)
        count += 1
    return count


def undefer(holder: Holder, stream: Stream, seqs: list[int], now_ms: int) -> None:
    """Make deferred messages active again, all or none."""
    for seq in seqs:
        stream.check_deferred(seq)
    for seq in seqs:
        stream.undefer(seq)
    hand_on(holder, stream, now_ms)


def hand_on(holder: Holder, stream: Stream, now_ms: int) -> None:
    """Nobody receives what waits in an entity that forwards: it goes where the rest went (E9)."""
    if stream.is_main and holder.forward_to is not None:
        holder.forward_waiting(now_ms)
