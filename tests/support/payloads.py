"""What the journal must keep of payloads, counted anew and compared with what the engine says."""

from __future__ import annotations

from collections import Counter

from twinbus.engine.engine import Engine
from twinbus.engine.index import GONE


def check_payloads(engine: Engine) -> None:
    """The journal must keep every payload that some message uses, and each of them once."""
    used: Counter[tuple[int, int]] = Counter()
    for stream in engine.streams():
        for chunk in stream.index.chunks.values():
            columns = zip(chunk.locations, chunk.sizes, chunk.states, strict=True)
            used.update((location, size) for location, size, state in columns if state != GONE)
    assert engine.kernel.live_bytes == sum(size for _, size in used)
    more = {location: count - 1 for (location, _), count in used.items() if count > 1}
    assert engine.kernel.sharers == more
