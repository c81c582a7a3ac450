"""One live broker for the package, a client for it, and tests that run side by side.

The clients wait by their own timers (locks that run out, polls, keep-alive), not for the
machine. So all tests run together, in threads, while the first one is on; then each reports
for itself. The suite takes as long as its longest waits, not as long as their sum. Each test
has entities of its own; one that ends a broker starts another.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient

from tests.compat.whole.kit import Bus, open_broker

THREADS = 16
# What threads may share.
SHARED = ("bus", "client")

Outcomes = dict[str, Future[None]]
OUTCOMES = pytest.StashKey[Outcomes]()


@pytest.fixture(scope="session")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    with open_broker(tmp_path_factory.mktemp("broker")) as broker:
        yield Bus(broker)
        assert '"exception": ' not in broker.log


# Of its own accord, so that every test has it to share.
@pytest.fixture(scope="session", autouse=True)
def client(bus: Bus) -> Iterator[ServiceBusClient]:
    with bus.client() as opened:
        yield opened


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool:
    stash = pyfuncitem.session.stash
    if OUTCOMES not in stash:
        stash[OUTCOMES] = _run_all(pyfuncitem)
    stash[OUTCOMES][pyfuncitem.nodeid].result()
    return True


def _run_all(first: pytest.Function) -> Outcomes:
    """Run every chosen test of this package to its end.

    To the end, since pytest changes the environment between tests and clients read it.
    """
    shared = {name: first.funcargs[name] for name in SHARED}
    items = [
        item
        for item in first.session.items
        if isinstance(item, pytest.Function) and item.path.parent == Path(__file__).parent
    ]
    with ThreadPoolExecutor(THREADS) as pool:
        return {item.nodeid: pool.submit(_run, item, shared) for item in items}


def _run(item: pytest.Function, shared: dict[str, Any]) -> None:
    function = getattr(item.module, item.originalname)
    given = dict(item.callspec.params) if hasattr(item, "callspec") else {}
    wanted = inspect.signature(function).parameters
    given |= {name: shared[name] for name in SHARED if name in wanted}
    result = function(**given)
    if inspect.isawaitable(result):
        asyncio.run(_awaited(result))


async def _awaited(result: Any) -> None:
    await result
