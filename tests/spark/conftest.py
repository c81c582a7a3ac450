"""One Spark session and one live broker for the tests of a worker, and fresh queues.

Both are started when the first test asks for them. `TWINBUS_FORM` chooses the form of the
broker, as in the compatibility tests; `TWINBUS_TEST_MASTER` and `TWINBUS_TEST_REMOTE` run the
same tests on a cluster or over Spark Connect (`test_cluster.py` does).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker import PROJECT, Broker
from tests.support.fixtures import (  # noqa: F401
    FORM,
    broker,
    broker_options,
    pool,
    queue,
    session_queue,
    unique_queue,
)

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from twinbus.spark.session import session
from twinbus.spark.source import register


def worker_path() -> str:
    """PYTHONPATH for Spark's workers, wherever they run: as ours, and the tests' own modules."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    places = [str(Path(place).resolve()) for place in given if place]
    return os.pathsep.join(dict.fromkeys([*places, str(PROJECT)]))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    os.environ["PYTHONPATH"] = worker_path()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    conf = {"spark.sql.shuffle.partitions": "2"}
    started = {
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.executorEnv.PYTHONPATH": worker_path(),
        "spark.executor.memory": "512m",
        "spark.driver.host": "127.0.0.1",
    }
    master = os.environ.get("TWINBUS_TEST_MASTER", "local[2]")
    remote = os.environ.get("TWINBUS_TEST_REMOTE")
    if not remote:
        conf |= started
    live = session("twinbus tests", master, remote=remote, memory="1g", short=True, **conf)
    register(live)
    yield live
    live.stop()


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker that one test may kill and restart: a source, and a target that drops duplicates."""
    queues: dict[str, dict[str, object]] = {
        "source": {"LockDuration": "PT1M"},
        "target": {"LockDuration": "PT1M", "RequiresDuplicateDetection": True},
    }
    with Broker(tmp_path / "broker", queues, FORM) as live:
        yield live
    print(live.log)
