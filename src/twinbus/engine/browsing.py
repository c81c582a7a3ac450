"""Looking at messages without taking them: which there are, and how they look on the wire (E5).

Sequence numbers and states go in, encoded messages come out, as a peek gives them: annotations
with sequence number, enqueued time and state. Nothing is changed.
"""

from typing import Final

from twinbus.engine import stored as form
from twinbus.engine.index import (
    ACTIVE,
    CHUNK_BITS,
    CHUNK_MASK,
    CHUNK_SIZE,
    DEFERRED,
    DEFERRED_LOCKED,
    LOCKED,
    RESERVED,
    SCHEDULED,
    Chunk,
)
from twinbus.engine.stream import Stream

#: What clients call the states.
STATES: Final = {
    "active": bytes((ACTIVE,)),
    "locked": bytes((LOCKED, DEFERRED_LOCKED)),
    "deferred": bytes((DEFERRED, DEFERRED_LOCKED)),
    "scheduled": bytes((SCHEDULED,)),
    "reserved": bytes((RESERVED,)),
}
ALL_STATES: Final = bytes((ACTIVE, LOCKED, DEFERRED, DEFERRED_LOCKED, SCHEDULED, RESERVED))
# What a message says of itself; one that says nothing is active.
WIRE_STATE: Final = {DEFERRED: 1, DEFERRED_LOCKED: 1, SCHEDULED: 2}


def on_wire(stream: Stream, seq: int, omit_body: bool) -> bytes:
    """A message that is there, as a client gets to see it."""
    return _on_wire(stream, stream.index.chunks[seq >> CHUNK_BITS], seq, omit_body)


def _on_wire(stream: Stream, chunk: Chunk, seq: int, omit_body: bool) -> bytes:
    offset = seq & CHUNK_MASK
    stored = chunk.payloads[offset]
    if stored is None:
        stored = stream.kernel.log.read(chunk.locations[offset], chunk.sizes[offset])
    count = stream.counts.get(seq, 0) if stream.counts else 0
    state = WIRE_STATE.get(chunk.states[offset], 0)
    if omit_body:
        stored, start = form.without_body(stored)
    else:
        start = form.bare_start(stored)
    return form.free_head(stored, seq, chunk.enqueued[offset], count, state) + stored[start:]


def read(
    stream: Stream, first: int, last: int, bytes_max: int, states: bytes, omit_body: bool
) -> list[bytes]:
    """The messages of a range in order, as many as fit, and one at least if there is any."""
    found: list[bytes] = []
    size = 0
    index = stream.index
    last = min(last, stream.durable_seq)
    seq = index.next_present(max(first, 1))
    while seq and seq <= last:
        chunk = index.chunks[seq >> CHUNK_BITS]
        base = seq - (seq & CHUNK_MASK)
        end = min(last + 1, base + len(chunk.states))
        while seq < end:
            # No message is GONE among the states that are asked for.
            if chunk.states[seq & CHUNK_MASK] in states:
                message = _on_wire(stream, chunk, seq, omit_body)
                size += len(message)
                if found and size > bytes_max:
                    return found
                found.append(message)
            seq += 1
        seq = index.next_present(base + CHUNK_SIZE)
    return found
