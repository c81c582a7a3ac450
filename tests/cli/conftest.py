"""One live broker, and the command line that talks to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.command_line import FORM, CommandLine, Warm, command_line
from tests.support.broker import Broker
from tests.support.queues import QueuePool


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    process = Warm(tmp_path_factory.mktemp("warm"))
    yield process
    process.close()


@pytest.fixture(scope="session")
def pool() -> QueuePool:
    return QueuePool(each=30)


@pytest.fixture(scope="session")
def broker(pool: QueuePool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory = tmp_path_factory.mktemp("broker")
    with Broker(directory, pool.declared(), FORM, ("--admin-port", "0")) as live:
        yield live


@pytest.fixture
def run(broker: Broker, warm: Warm) -> CommandLine:
    return command_line(broker, warm)


@pytest.fixture
def queue(pool: QueuePool) -> str:
    return pool.take()


@pytest.fixture
def session_queue(pool: QueuePool) -> str:
    return pool.take("session")


@pytest.fixture
def make_broker(tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    """Brokers of a test's own."""
    made: list[Broker] = []

    def make(queues: dict[str, dict[str, object]]) -> Broker:
        broker = Broker(tmp_path / f"broker-{len(made)}", queues, FORM, ("--admin-port", "0"))
        made.append(broker)
        return broker.start()

    yield make
    for broker in made:
        broker.kill()
