"""One live broker for each module, with its admin port, and a client for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from azure.servicebus import ServiceBusClient
from tests.compat.whole.kit import Bus, open_broker


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    with open_broker(tmp_path_factory.mktemp("broker")) as broker:
        yield Bus(broker)


@pytest.fixture(scope="module")
def client(bus: Bus) -> Iterator[ServiceBusClient]:
    with bus.client() as opened:
        yield opened
