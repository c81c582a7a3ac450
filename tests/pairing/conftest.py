"""Two brokers for the whole run; a world of its own for each test."""

import gc
import os
from collections.abc import Iterator

import pytest

from tests.pairing.live import Side
from tests.pairing.pairs import LiveWorld

FORM = os.environ.get("TWINBUS_FORM")


@pytest.fixture(scope="session")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    pair = (
        Side(tmp_path_factory.mktemp("primary"), FORM),
        Side(tmp_path_factory.mktemp("secondary"), FORM),
    )
    yield pair
    for side in pair:
        side.close()


@pytest.fixture(scope="module", autouse=True)
def _no_garbage_for_others() -> Iterator[None]:
    """The SDK leaves sockets of broken connections to the garbage collector, which would warn
    in whatever test runs next; the modules here expect it (see their marks)."""
    yield
    gc.collect()


@pytest.fixture
def world(sides: tuple[Side, Side]) -> Iterator[LiveWorld]:
    with LiveWorld(*sides) as own:
        yield own
