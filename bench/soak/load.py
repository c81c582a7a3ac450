"""Compiles and runs the load generator (`generator.c`), and speaks with it.

Enters: a broker's port, how many pairs and idle connections. Leaves: reports of what was sent,
acknowledged, delivered and settled, with latencies. It must not judge them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.clients import BUILD
from tests.support.broker import KEY, KEY_NAME

HERE = Path(__file__).parent
SOURCES = ("generator.c", "wire.h", "ledger.h")


@dataclass(frozen=True)
class Report:
    """Counters since the start, and latencies since the last report."""

    at_s: float
    counts: dict[str, int]
    cpu_s: float
    latencies: dict[str, list[tuple[int, int]]]

    def __getitem__(self, name: str) -> int:
        return self.counts[name]


class Load:
    """One generator process: `pairs` senders and receivers, one pair on the side, idle ones."""

    def __init__(self, port: int, pairs: int, idle: int, queues: int) -> None:
        self.connections = 2 * (pairs + 1) + idle
        command = [str(_compiled()), *map(str, (port, KEY_NAME, pairs, idle, queues))]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"BENCH_PASSWORD": KEY},
        )

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def tell(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()

    def _ask(self, command: str) -> dict[str, Any]:
        self.tell(command)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the generator ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def report(self) -> Report:
        line = self._ask("report")
        return Report(time.monotonic(), line, line.pop("cpu_seconds"), line.pop("latencies"))

    def lost(self) -> int:
        """Look through the whole ledger for what was acknowledged and never came."""
        return int(self._ask("check")["lost"])

    def await_connections(self, seconds_max: float) -> float:
        """Wait until all are up; give the seconds it took."""
        begun = time.monotonic()
        while (up := self.report()["up"]) < self.connections:
            if time.monotonic() - begun > seconds_max:
                raise RuntimeError(f"{up} of {self.connections} connections came up in time")
            time.sleep(0.1)
        return time.monotonic() - begun

    def drain(self, seconds_max: float) -> Report:
        """Send nothing new; wait until all that was sent is answered, delivered and settled."""
        self.tell("open 0")
        self.tell("side 0")
        until = time.monotonic() + seconds_max
        quiet, last = 0, self.report()
        while time.monotonic() < until and quiet < 3:
            time.sleep(0.5)
            now = self.report()
            unchanged = all(now[name] == last[name] for name in ("settled", "delivered"))
            quiet = quiet + 1 if unchanged and now["unanswered"] == 0 else 0
            last = now
        return last


def _compiled() -> Path:
    program = BUILD / "soak-generator"
    sources = [HERE / name for name in SOURCES]
    newest = max(source.stat().st_mtime for source in sources)
    if program.exists() and program.stat().st_mtime > newest:
        return program
    compiler = shutil.which("cc")
    if compiler is None:
        raise RuntimeError("the soak needs a C compiler: apt-get install gcc")
    BUILD.mkdir(parents=True, exist_ok=True)
    flags = ["-O2", "-Wall", "-Wextra", "-D_GNU_SOURCE"]
    subprocess.run([compiler, *flags, "-o", str(program), str(sources[0])], check=True)
    return program
