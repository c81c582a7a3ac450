"""Paired namespaces as the broker sees them: its backlog queues, and who is pinged.

Whether a pair has failed over is known to the applications that send; the broker of the
secondary knows what they parked and what the syphon took away again, that of the primary
knows the pings.
"""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

from twinbus.admin.console.overview import entities_of, row_of
from twinbus.admin.console.streams import SEARCH_S, SLICE_S, next_seq, states_of
from twinbus.amqp import codec
from twinbus.amqp.errors import DecodeError
from twinbus.engine.message import Message
from twinbus.engine.namespace import Namespace
from twinbus.engine.stream import Stream

_BACKLOG = re.compile(r"(?P<primary>[^/]+)/x-servicebus-transfer/(?P<index>\d+)", re.IGNORECASE)
#: Where a parked message says where it belongs (P8).
_PATH = "x-ms-path"
_NOWHERE = "(no destination)"

Json = dict[str, Any]


def backlog_queues(namespace: Namespace) -> list[Json]:
    found: list[Json] = []
    for queue in namespace.queues.values():
        match = _BACKLOG.fullmatch(queue.path)
        if match is None:
            continue
        first = next_seq(queue.main, states_of(""), 1)
        found.append(
            {
                **row_of(queue),
                "primary": match["primary"],
                "index": int(match["index"]),
                "oldest": queue.main.enqueued_ms(first) if first else 0,
                "receivers": queue.main.receivers,
                "settled": queue.meter.settlements,
            }
        )
    return sorted(found, key=lambda queue: (queue["primary"], queue["index"]))


def pinged_entities(namespace: Namespace) -> list[Json]:
    return [
        {"path": entity.path, "pings": entity.meter.pings}
        for entity in entities_of(namespace)
        if entity.meter.pings
    ]


async def destinations(stream: Stream, from_seq: int) -> Json:
    """Count parked messages by where they belong, for a bounded time; `next` says where to
    go on."""
    counts: dict[str, int] = {}
    states = states_of("")
    deadline = time.perf_counter() + SEARCH_S
    slice_end = time.perf_counter() + SLICE_S
    seq = next_seq(stream, states, from_seq)
    while seq and time.perf_counter() < deadline:
        path = destination(stream.stored(seq))
        counts[path] = counts.get(path, 0) + 1
        if time.perf_counter() > slice_end:
            await asyncio.sleep(0)
            slice_end = time.perf_counter() + SLICE_S
        seq = next_seq(stream, states, seq + 1)
    return {"counts": counts, "next": seq}


def destination(stored: bytes) -> str:
    try:
        for key, raw in Message(stored).application_properties():
            if key == _PATH:
                return str(codec.decode_whole(raw))
    except DecodeError:
        pass
    return _NOWHERE
