"""Runs the driver of copies as a process, again and again from its checkpoints, and kills it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from tests.spark.conftest import worker_path
from tests.spark.queues import peeked_ids, send_numbered
from tests.spark.streams.driver import Copy, arguments
from tests.spark.streams.ledger import Competitor, check
from tests.spark.streams.points import POINT, session_members
from tests.support.broker import PROJECT, Broker

MODES = ("reserve", "defer")
BATCH = 20
# Spark commits a batch when it plans the next one: the last two points need that.
COUNT = 2 * BATCH
# Why Spark ends a query that nothing is wrong with: a worker that takes more than ten seconds to
# start, and a task read while another query of the same driver changes what it was made of.
SPARKS_OWN = ("failed to connect back", "java.io.OptionalDataException")
TRIES = 4


def queues(modes: tuple[str, ...] = MODES) -> dict[str, dict[str, object]]:
    """A source for each mode, and a target that drops duplicates."""
    found: dict[str, dict[str, object]] = {}
    for mode in modes:
        found[mode] = {"LockDuration": "PT5S", "MaxDeliveryCount": 100}
        found[f"{mode}-copy"] = {"RequiresDuplicateDetection": True}
    return found


class Run:
    """Copies that are begun again and again from their checkpoints."""

    def __init__(self, broker: Broker, directory: Path, modes: tuple[str, ...] = MODES) -> None:
        self.broker = broker
        self._log = directory / "driver.log"
        self.copies = [
            Copy(
                broker.connection_string, mode, f"{mode}-copy", mode, mode,
                str(directory / f"{mode}-checkpoint"), BATCH,
            )
            for mode in modes
        ]  # fmt: skip
        self.sent: dict[str, list[str]] = {mode: [] for mode in modes}

    def send(self, count: int = COUNT) -> None:
        for mode, sent in self.sent.items():
            sent += send_numbered(self.broker, mode, count, start=len(sent))

    def go(self, point: str = "") -> int:
        """Run the driver to its end, or until it is killed; gives its exit status."""
        for _ in range(TRIES):
            self._log.unlink(missing_ok=True)
            status = self.go_once(point)
            if status != 1 or not any(text in self.said for text in SPARKS_OWN):
                break
        return status

    def go_once(self, point: str = "", seconds_max: float = 180, kill_after_s: float = 0) -> int:
        environment = os.environ | {POINT: point, "PYTHONPATH": worker_path()}
        with self._log.open("ab") as log:
            driver = subprocess.Popen(
                arguments(self.copies), env=environment, cwd=PROJECT, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
            try:
                return driver.wait(kill_after_s or seconds_max)
            except subprocess.TimeoutExpired:
                assert kill_after_s, f"no end in {seconds_max} s:\n{self.said}"
                return -signal.SIGKILL
            finally:
                kill_all(driver)

    def finish(self, competitors: dict[str, Competitor] | None = None) -> None:
        """Let it come to its end, and see where every message is."""
        assert self.go() == 0, self.said
        for mode, sent in self.sent.items():
            copied = peeked_ids(self.broker, f"{mode}-copy")
            check(sent, copied, competitors.get(mode) if competitors else None)

    @property
    def said(self) -> str:
        return self._log.read_text()[-20_000:]


def kill_all(driver: subprocess.Popen[bytes]) -> None:
    """What is left of the driver's session, the JVM and the workers."""
    while left := session_members(driver.pid):
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        driver.poll()
        time.sleep(0.01)
    driver.wait()
