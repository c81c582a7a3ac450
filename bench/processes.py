"""Reads what a broker's processes used: processor time and memory, from /proc.

A process id goes in; seconds or bytes of it and all its descendants come out. It must not
signal or change anything.
"""

from __future__ import annotations

import os
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def _stat(pid: int) -> list[str]:
    # The second field is a name in parentheses that may itself hold spaces.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _tree(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                children.setdefault(int(_stat(int(entry.name))[1]), []).append(int(entry.name))
            except (FileNotFoundError, ProcessLookupError):
                continue
    found = [root]
    for pid in found:
        found.extend(children.get(pid, ()))
    return found


def cpu_seconds(root: int) -> float:
    """User and system time of the tree, its ended children included."""
    return sum(sum(map(int, _stat(pid)[11:15])) for pid in _tree(root)) / TICKS_PER_SECOND


def own_cpu_seconds(pid: int) -> float:
    """User and system time of one process, without its children."""
    return sum(map(int, _stat(pid)[11:13])) / TICKS_PER_SECOND


def resident_bytes(root: int) -> int:
    return sum(int(_stat(pid)[21]) for pid in _tree(root)) * PAGE_BYTES
