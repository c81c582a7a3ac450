"""Finding one's way in a stream of a million messages: pages by sequence number, searches.

A step from one message to the next looks at whole chunks of the index, forwards and
backwards. A search reads bodies, so it goes in slices between which the broker does its work,
and ends after a bounded time; what it returns says where to go on.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from uuid import uuid4

from twinbus.admin.console.overview import STATES
from twinbus.core import errors, names
from twinbus.core.errors import BusError
from twinbus.engine.entities import Entity, Holder
from twinbus.engine.index import CHUNK_BITS
from twinbus.engine.message import Message
from twinbus.engine.stream import Stream
from twinbus.engine.view import View
from twinbus.filters import EvaluationError, FilterError, sql_filter

STREAMS = {
    "main": names.MAIN_STREAM,
    "dead-letter": names.DEAD_LETTER_STREAM,
    "transfer": names.TRANSFER_STREAM,
}
SLICE_S = 0.008
SEARCH_S = 0.4
SPANS = 48
#: Messages counted before others have their turn.
STRIDE = 20_000


def find_stream(entity: Entity, which: str) -> Stream | None:
    """The stream of an entity, None where nothing was ever put into it."""
    if which not in STREAMS:
        raise BusError(errors.ARGUMENT_ERROR, f"'{which}' is none of {', '.join(STREAMS)}.")
    if which != "main" and not isinstance(entity, Holder):
        raise BusError(errors.NOT_ALLOWED, f"'{entity.path}' is a topic: it has no dead letters.")
    return entity.streams.get(STREAMS[which])


def states_of(name: str) -> bytes:
    """The states that a name stands for; an empty name stands for all."""
    if not name:
        return bytes(state for states in STATES.values() for state in states)
    if name not in STATES:
        raise BusError(errors.ARGUMENT_ERROR, f"'{name}' is none of {', '.join(STATES)}.")
    return bytes(STATES[name])


def state_name(stream: Stream, seq: int) -> str:
    state = stream.index.state(seq)
    return next((name for name, states in STATES.items() if state in states), "gone")


def next_seq(stream: Stream, states: bytes, seq: int) -> int:
    """The first message from `seq` on in one of these states, 0 if there is none."""
    index = stream.index
    seq = max(seq, 1)
    for at in range(bisect_left(index.order, seq >> CHUNK_BITS), len(index.order)):
        number = index.order[at]
        held = index.chunks[number].states
        base = number << CHUNK_BITS
        offsets = [held.find(state, max(0, seq - base)) for state in states]
        found = min((offset for offset in offsets if offset >= 0), default=-1)
        if found >= 0:
            return base + found if base + found <= stream.durable_seq else 0
    return 0


def previous_seq(stream: Stream, states: bytes, seq: int) -> int:
    """The last message up to `seq` in one of these states, 0 if there is none."""
    seq = min(seq, stream.durable_seq)
    index = stream.index
    at = bisect_right(index.order, seq >> CHUNK_BITS)
    while at > 0:
        at -= 1
        chunk = index.chunks[index.order[at]]
        base = chunk.number << CHUNK_BITS
        end = min(len(chunk.states), seq - base + 1)
        offset = max(chunk.states.rfind(state, 0, end) for state in states)
        if offset >= 0:
            return base + offset
    return 0


def page(stream: Stream, states: bytes, seq: int, count: int, *, backwards: bool) -> list[int]:
    """Up to `count` messages from a number on, or up to it, in ascending order."""
    found: list[int] = []
    step = previous_seq if backwards else next_seq
    seq = step(stream, states, seq)
    while seq and len(found) < count:
        found.append(seq)
        seq = step(stream, states, seq - 1 if backwards else seq + 1)
    return found[::-1] if backwards else found


async def timeline(stream: Stream, now_ms: int) -> dict[str, object]:
    """How many scheduled messages are due in each of some equal spans from now on."""
    due = list(stream.due.values())
    if not due:
        return {"start": now_ms, "span": 0, "counts": [], "total": 0}
    # The last span ends with the last message; nothing is due much before now.
    start = min(now_ms, min(due))
    span = max(1_000, -(-(max(due) + 1 - start) // SPANS))
    counts = [0] * SPANS
    for at in range(0, len(due), STRIDE):
        for due_ms in due[at : at + STRIDE]:
            counts[(due_ms - start) // span] += 1
        await asyncio.sleep(0)
    return {"start": start, "span": span, "counts": counts, "total": len(due)}


@dataclass(frozen=True, slots=True)
class Query:
    """What is looked for: a text anywhere in a message, and a filter over its properties."""

    text: str = ""
    sql: str = ""

    def matcher(self) -> Callable[[bytes], bool]:
        tests: list[Callable[[bytes], bool]] = []
        if self.text:
            # Half a character, which JSON can hold, is found nowhere.
            wanted = self.text.encode(errors="surrogatepass").lower()
            tests.append(lambda stored: wanted in stored.lower())
        if self.sql:
            try:
                compiled = sql_filter(self.sql)
            except FilterError as error:
                raise BusError(errors.ARGUMENT_ERROR, f"The filter is not valid: {error}") from None

            def holds(stored: bytes) -> bool:
                try:
                    return compiled.matches(View(Message(stored), uuid4))
                except (EvaluationError, BusError):
                    return False

            tests.append(holds)
        return lambda stored: all(test(stored) for test in tests)


EVERYTHING = Query()


@dataclass(slots=True)
class Found:
    """What one bounded search came to."""

    seqs: list[int]
    scanned: int = 0
    #: Where to go on; 0 at the end of the stream.
    next_seq: int = 0


async def search(
    stream: Stream, states: bytes, query: Query, from_seq: int, to_seq: int, count: int
) -> Found:
    """Look for messages from one number to another until enough are found or time is up."""
    matches = query.matcher()
    found = Found([])
    deadline = time.perf_counter() + SEARCH_S
    slice_end = time.perf_counter() + SLICE_S
    seq = next_seq(stream, states, from_seq)
    while seq and seq <= to_seq:
        if len(found.seqs) == count or time.perf_counter() > deadline:
            found.next_seq = seq
            break
        found.scanned += 1
        if matches(stream.stored(seq)):
            found.seqs.append(seq)
        if time.perf_counter() > slice_end:
            await asyncio.sleep(0)
            slice_end = time.perf_counter() + SLICE_S
        # Looked up after the pause: the stream may have changed meanwhile.
        seq = next_seq(stream, states, seq + 1)
    return found
