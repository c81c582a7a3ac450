"""A live broker with every port open, and limits small enough to be reached."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.support.broker import Broker

FORM = os.environ.get("TWINBUS_FORM")
QUEUE = "orders"
CONFIG = f"""
max_unauthenticated = 20
max_connections = 8
[namespaces.sbemulatorns.queues.{QUEUE}]
[namespaces.sbemulatorns.topics.events.subscriptions.all]
"""

Start = Callable[..., Broker]


def ports(*more: str) -> tuple[str, ...]:
    return ("--admin-port", "0", "--amqps-port", "0", *more)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Start brokers that end with the module; the configuration is TOML."""
    with ExitStack() as running:

        def start(config: str = CONFIG, more_options: tuple[str, ...] = (), **more: Any) -> Broker:
            directory = tmp_path_factory.mktemp("broker")
            file = directory / "twinbus.toml"
            file.write_text(config)
            options = ports("--config", str(file), *more_options)
            broker = Broker(directory, form=FORM, options=options, **more)
            return running.enter_context(broker)

        yield start


@pytest.fixture(scope="module")
def broker(start: Start) -> Broker:
    return start()
