"""Two brokers for the whole run; a fresh queue, a proxy and an empty backlog for each test."""

import os
from collections.abc import Iterator

import pytest
from tests.pairing.live import Side
from tests.pairing.proxy import FaultyProxy

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


@pytest.fixture
def near(sides: tuple[Side, Side]) -> Side:
    """The primary."""
    return sides[0]


@pytest.fixture
def far(sides: tuple[Side, Side]) -> Side:
    """The secondary, with no backlog queue yet."""
    sides[1].clear_backlog()
    return sides[1]


@pytest.fixture
def proxy(near: Side) -> Iterator[FaultyProxy]:
    """The road to the primary."""
    with FaultyProxy(near.broker.amqp_port) as road:
        yield road


@pytest.fixture
def queue(near: Side) -> str:
    return near.new_queue()
