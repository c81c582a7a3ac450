"""One live broker for all compatibility tests, and a fresh queue for each.

`TWINBUS_FORM=compiled` or `interpreted` chooses the form; without it the broker runs with
the environment that pytest runs with.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker import Broker
from tests.support.queues import QueuePool

FORM = os.environ.get("TWINBUS_FORM")


@pytest.fixture(scope="session")
def pool() -> QueuePool:
    return QueuePool()


@pytest.fixture(scope="session")
def broker(pool: QueuePool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("broker"), pool.declared(), FORM) as live:
        yield live
    print(live.log)


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker that one test may kill and restart."""
    queues: dict[str, dict[str, object]] = {"q": {"LockDuration": "PT5M"}}
    with Broker(tmp_path, queues, FORM) as live:
        yield live
    print(live.log)


@pytest.fixture
def queue(broker: Broker, pool: QueuePool) -> str:
    return pool.take()


@pytest.fixture
def brief_queue(broker: Broker, pool: QueuePool) -> str:
    """Locks of 5 s, three deliveries."""
    return pool.take("brief")


@pytest.fixture
def session_queue(broker: Broker, pool: QueuePool) -> str:
    return pool.take("session")


@pytest.fixture
def unique_queue(broker: Broker, pool: QueuePool) -> str:
    """With duplicate detection."""
    return pool.take("unique")
