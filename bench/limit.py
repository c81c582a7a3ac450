"""The bare disk: the same bytes appended to a preallocated file, one fdatasync per group.

Counts and sizes go in; seconds and processor time come out. It does nothing a broker would
do beyond keeping the bytes: what a broker adds to this is what the broker costs.
"""

from __future__ import annotations

import os
import resource
import tempfile
import time

from bench.clients import Work


def append(work: Work) -> tuple[float, float]:
    """Seconds, and seconds of processor time, to append and sync that many messages."""
    group = b"x" * (work.size_bytes * work.window)
    with tempfile.NamedTemporaryFile(prefix="bench-append-") as file:
        descriptor = file.fileno()
        os.posix_fallocate(descriptor, 0, len(group) * (work.count // work.window))
        os.fsync(descriptor)
        begun, cpu_begun = time.monotonic(), _own_cpu_seconds()
        for _ in range(work.count // work.window):
            os.write(descriptor, group)
            os.fdatasync(descriptor)
        return time.monotonic() - begun, _own_cpu_seconds() - cpu_begun


def _own_cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
