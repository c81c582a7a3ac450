"""One live broker for the package, a client for it, and tests that run side by side.

The clients wait by their own timers (locks that run out, polls, keep-alive), not for the
machine. So all tests start together, in threads, and each reports for itself: the suite
takes as long as its longest waits, not as long as their sum. Each test has entities of its
own; one that ends a broker starts another.
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

Running = dict[str, Future[None]]
RUNNING = pytest.StashKey[Running]()


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
    if RUNNING not in stash:
        stash[RUNNING] = _start(pyfuncitem)
    stash[RUNNING][pyfuncitem.nodeid].result()
    return True


def _start(first: pytest.Function) -> Running:
    """Start every chosen test of this package."""
    shared = {name: first.funcargs[name] for name in SHARED}
    items = [
        item
        for item in first.session.items
        if isinstance(item, pytest.Function) and item.path.parent == Path(__file__).parent
    ]
    pool = ThreadPoolExecutor(THREADS)
    running = {item.nodeid: pool.submit(_run, item, shared) for item in items}
    pool.shutdown(wait=False)
    return running


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
