"""Messages that were set aside, deferred or reserved, and wait in their own places again."""

from twinbus.engine.entities import Holder
from twinbus.engine.stream import Stream


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
