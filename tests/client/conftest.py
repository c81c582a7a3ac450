"""One live broker for the client's tests, with TLS, and a fresh queue for each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker import Broker
from tests.support.fixtures import FORM, broker, pool, queue, session_queue  # noqa: F401


@pytest.fixture(scope="session")
def broker_options() -> tuple[str, ...]:
    return ("--admin-port", "off", "--amqps-port", "0")


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker that one test may kill and restart."""
    with Broker(tmp_path, {"q": {"RequiresDuplicateDetection": True}}, FORM) as live:
        yield live
    print(live.log)
