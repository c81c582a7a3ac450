"""L5: the same tests on a real cluster of two workers, and over Spark Connect.

A standalone master and two workers run as processes of this machine, from the wheel that pip
installed. Heavy, hence marked long.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pyspark
import pytest

from tests.spark.conftest import FORM, worker_path
from tests.spark.queues import peeked_ids
from tests.spark.streams.run import BATCH, Run, queues
from tests.support.broker import PROJECT, Broker
from twinbus.spark.java import java_home

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]

SAME_TESTS = ("test_source_batch.py", "test_stream.py", "test_writer.py")
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_WORKER = "Successfully registered with master"


@dataclass
class Service:
    """A process of Spark's own, with its log."""

    process: subprocess.Popen[bytes]
    log: Path

    def wait_for(self, pattern: str | re.Pattern[str], seconds: float = 120) -> str:
        deadline = time.monotonic() + seconds
        while not (found := re.search(pattern, self.log.read_text())):
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.1)
        return found[found.re.groups]

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        finally:
            self.process.kill()


def start(directory: Path, name: str, *arguments: str) -> Service:
    log = directory / f"{name}.log"
    environment = os.environ | {
        "JAVA_HOME": str(java_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": worker_path(),
    }
    spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(spark_class), f"org.apache.spark.deploy.{arguments[0]}", *arguments[1:]],
            env=environment, stdout=out, stderr=out,
        )  # fmt: skip
    return Service(process, log)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a master with two workers of one core each."""
    directory = tmp_path_factory.mktemp("cluster")
    here = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with ExitStack() as stack:
        master = stack.enter_context(start(directory, "master", "master.Master", *here))
        address = master.wait_for(_MASTER)
        size = ("--cores", "1", "--memory", "1g")
        for number in (1, 2):
            place = ("--work-dir", str(directory / f"work-{number}"))
            name = f"worker-{number}"
            worker = start(directory, name, "worker.Worker", *here, *size, *place, address)
            stack.enter_context(worker).wait_for(_WORKER)
        yield address


def run_tests(**environment: str) -> None:
    files = [str(PROJECT / "tests" / "spark" / name) for name in SAME_TESTS]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not long", "-p", "no:cacheprovider"]
    # What this process takes the package from, the other one takes, too.
    command += ["-o", f"pythonpath={' '.join(worker_path().split(os.pathsep))}"]
    answer = subprocess.run(
        [*command, "-o", "timeout=600", *files],
        env=os.environ | {"PYTHONPATH": worker_path()} | environment,
        cwd=PROJECT, capture_output=True, text=True,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stdout[-8000:] + answer.stderr[-2000:]


def test_l5_a_cluster_of_two_workers_passes_the_same_tests(cluster: str) -> None:
    run_tests(TWINBUS_TEST_MASTER=cluster)


def test_l3_l5_an_executor_is_killed_under_a_stream(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark tries its tasks again elsewhere: the query goes on, with nothing lost or twice."""
    monkeypatch.setenv("TWINBUS_TEST_MASTER", cluster)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    with Broker(tmp_path / "broker", queues(), FORM) as broker:
        run = Run(broker, tmp_path, ("reserve",))
        run.send(20 * BATCH)
        killed: list[int] = []
        killer = threading.Thread(target=_kill_an_executor, args=(broker, cluster, killed))
        killer.start()
        try:
            run.finish()
        finally:
            killer.join()
    assert killed


def _kill_an_executor(broker: Broker, cluster: str, killed: list[int]) -> None:
    """Wait until the stream runs, then kill one of its JVMs."""
    deadline = time.monotonic() + 180
    while not peeked_ids(broker, "reserve-copy") and time.monotonic() < deadline:
        time.sleep(0.1)
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            line = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
            # Executors say which worker they belong to; its master is the one of this test.
            if b"CoarseGrainedExecutorBackend" in line and _belongs(int(entry.name), cluster):
                os.kill(int(entry.name), signal.SIGKILL)
                killed.append(int(entry.name))
                return


def _belongs(executor: int, cluster: str) -> bool:
    """Tell whether an executor's parent, the worker, was started with this master's address."""
    stat = Path(f"/proc/{executor}/stat").read_text().rpartition(")")[2].split()
    return cluster.encode() in Path(f"/proc/{stat[1]}/cmdline").read_bytes()


def test_l5_spark_connect_passes_the_same_tests() -> None:
    if find_spec("grpc") is None or find_spec("pandas") is None:
        pytest.skip('Spark Connect is not installed: pip install "pyspark[connect]"')
    run_tests(TWINBUS_TEST_REMOTE="local[2]")


def test_l5_without_its_packages_spark_connect_says_what_to_install() -> None:
    if find_spec("grpc") is not None:
        pytest.skip("they are installed here")
    code = "from twinbus.spark.session import session; session('x', remote='sc://localhost')"
    answer = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": worker_path()}, capture_output=True, text=True,
    )  # fmt: skip
    assert 'pip install "pyspark[connect]"' in answer.stderr
