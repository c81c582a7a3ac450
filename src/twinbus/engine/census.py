"""What is there, written down as observations: the audit's fixed points (L1).

An engine goes in; one or more PRESENT records for each of its streams come out, all in the
journal's current batch. Settlements still gathered are written first, so that the census
follows every fact that it reflects.
"""

import re
from typing import Final

from twinbus.engine.engine import Engine
from twinbus.engine.index import CHUNK_BITS, Index
from twinbus.engine.observations import PRESENT, observed, packed_runs

_RUNS_MAX: Final = 50_000
# A run of messages in a chunk, whatever their states but GONE.
_THERE: Final = re.compile(rb"[^\0]+")


def take_census(engine: Engine) -> None:
    kernel = engine.kernel
    kernel.write_runs()
    for stream in engine.streams():
        runs = _runs(stream.index)
        for at in range(0, max(len(runs), 1), _RUNS_MAX):
            rest = packed_runs(runs[at : at + _RUNS_MAX])
            kernel.log.append(observed(PRESENT, stream.number, 0, stream.index.live, rest=rest))


def _runs(index: Index) -> list[tuple[int, int]]:
    """First sequence number and count of each run of neighbours."""
    found: list[tuple[int, int]] = []
    for number in index.order:
        base = number << CHUNK_BITS
        for match in _THERE.finditer(index.chunks[number].states):
            first = base + match.start()
            count = match.end() - match.start()
            if found and found[-1][0] + found[-1][1] == first:
                found[-1] = (found[-1][0], found[-1][1] + count)
            else:
                found.append((first, count))
    return found
