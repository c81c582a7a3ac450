"""One live broker for all compatibility tests, and a fresh queue for each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker import Broker
from tests.support.fixtures import (  # noqa: F401
    FORM,
    broker,
    broker_options,
    pool,
    queue,
    session_queue,
)


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker that one test may kill and restart."""
    queues: dict[str, dict[str, object]] = {"q": {"LockDuration": "PT5M"}}
    with Broker(tmp_path, queues, FORM) as live:
        yield live
    print(live.log)
