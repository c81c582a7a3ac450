"""What makes the tests quick: which of them stay together when several workers share them
(`--dist loadfile`), and JVMs that need not load Spark's classes one by one. And one fault of
CPython 3.11 that they would meet.

Enters: the tests as pytest found them. Leaves: an order with the longest in front, and a
scheduler. It must not choose tests, nor change what one does.
"""

from __future__ import annotations

import ast
import gc
from pathlib import PurePosixPath
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

from tests.support import spark_archive

# All of its tests run while its first one is on (see its conftest): on a second worker they
# would all run a second time.
WHOLE = "tests/compat/whole"
# What takes longest begins first, so that no worker is left with it at the end.
LONGEST = ("whole", "test_stream_kill", "test_simulation", "test_how_to", "test_demo")


def group_of(nodeid: str) -> str:
    """A file's tests stay together: they share what it makes."""
    file = PurePosixPath(nodeid.partition("::")[0])
    return WHOLE if file.parent == PurePosixPath(WHOLE) else str(file)


class ByGroup(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByGroup | None:
    return ByGroup(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_configure() -> None:
    spark_archive.use()
    ast.parse = parse_in_peace


def parse_in_peace(*given: Any, _parse: Any = ast.parse, **more: Any) -> Any:
    """Parse while no garbage is collected: what another test left, if it is collected in the
    middle, makes CPython 3.11 fail ("AST constructor recursion depth mismatch", its issue 106905).
    The tests of house rules parse, and so does Hypothesis."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        return _parse(*given, **more)
    finally:
        if was_on:
            gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(PurePosixPath(group_of(item.nodeid)).stem, len(rank)))
