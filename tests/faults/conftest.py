"""A live broker of its own for each test, and a ledger queue on it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.ledger import QUEUE
from tests.support.broker import Broker

BRIEF, BRIEF_LOCK_S = "brief", 5
FORM = os.environ.get("TWINBUS_FORM")


def broker_on(directory: Path) -> Broker:
    queues: dict[str, dict[str, object]] = {
        QUEUE: {"LockDuration": "PT1M"},
        BRIEF: {"LockDuration": f"PT{BRIEF_LOCK_S}S"},
        "other": {},
    }
    return Broker(directory, queues, FORM)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with broker_on(tmp_path) as live:
        yield live
