"""A live broker and fresh queues, for the directories whose tests share one broker.

A conftest imports the names it wants. `TWINBUS_FORM=compiled` or `interpreted` chooses the
form; without it the broker runs with the environment that pytest runs with.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.broker import Broker
from tests.support.queues import QueuePool

FORM = os.environ.get("TWINBUS_FORM")


@pytest.fixture(scope="session")
def pool() -> QueuePool:
    return QueuePool()


@pytest.fixture(scope="session")
def broker_options() -> tuple[str, ...]:
    """What `serve` is told besides; a conftest may have it otherwise."""
    return ("--admin-port", "off")


@pytest.fixture(scope="session")
def broker(
    pool: QueuePool, broker_options: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    directory = tmp_path_factory.mktemp("broker")
    with Broker(directory, pool.declared(), FORM, broker_options) as live:
        yield live
    print(live.log)


@pytest.fixture
def queue(broker: Broker, pool: QueuePool) -> str:
    return pool.take()


@pytest.fixture
def session_queue(broker: Broker, pool: QueuePool) -> str:
    return pool.take("session")


@pytest.fixture
def unique_queue(broker: Broker, pool: QueuePool) -> str:
    """With duplicate detection."""
    return pool.take("unique")
