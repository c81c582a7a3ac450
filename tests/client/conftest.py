"""One live broker for the client's tests, with TLS, and a fresh queue for each."""

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
    options = ("--admin-port", "off", "--amqps-port", "0")
    with Broker(tmp_path_factory.mktemp("broker"), pool.declared(), FORM, options) as live:
        yield live
    print(live.log)


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker that one test may kill and restart."""
    with Broker(tmp_path, {"q": {"RequiresDuplicateDetection": True}}, FORM) as live:
        yield live
    print(live.log)


@pytest.fixture
def queue(broker: Broker, pool: QueuePool) -> str:
    return pool.take()


@pytest.fixture
def session_queue(broker: Broker, pool: QueuePool) -> str:
    return pool.take("session")
