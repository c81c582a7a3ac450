"""Finds the cheapest client this machine can run, and runs it.

A piece of work and where to do it go in; counts and times come out. The client is C over
qpid-proton, compiled on demand; where its headers or a compiler are missing the Python
binding does the same work and the report says that it limits the broker.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
BUILD = HERE.parent / "build" / "bench"
INSTALL_HINT = "apt-get install --no-install-recommends gcc pkg-config libqpid-proton11-dev"


@dataclass(frozen=True)
class Endpoint:
    """Where a broker listens, and the process whose cost is counted."""

    pid: int
    port: int
    address: str
    user: str
    password: str


@dataclass(frozen=True)
class Work:
    mode: str
    count: int
    size_bytes: int
    window: int = 1000


@dataclass(frozen=True)
class Done:
    count: int
    seconds: float
    acknowledged_ms: dict[str, float]


@dataclass(frozen=True)
class Client:
    command: tuple[str, ...]
    is_fast: bool

    def run(self, endpoint: Endpoint, work: Work) -> Done:
        arguments = ["--port", endpoint.port, "--address", endpoint.address]
        arguments += ["--user", endpoint.user, "--count", work.count]
        arguments += ["--size", work.size_bytes, "--window", work.window]
        ended = subprocess.run(
            [*self.command, work.mode, *map(str, arguments)],
            env=os.environ | {"BENCH_PASSWORD": endpoint.password},
            capture_output=True,
            text=True,
        )
        if ended.returncode:
            raise RuntimeError(f"{work.mode} on {endpoint.address}: {ended.stderr.strip()}")
        line = json.loads(ended.stdout)
        return Done(line["count"], line["seconds"], line.get("acknowledged_ms", {}))


def find_client() -> Client:
    """The compiled client, or the Python one where it cannot be compiled."""
    try:
        return Client((str(_compiled()),), is_fast=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        return Client((sys.executable, str(HERE / "slow_client.py")), is_fast=False)


def _compiled() -> Path:
    source, program = HERE / "client.c", BUILD / "client"
    if program.exists() and program.stat().st_mtime > source.stat().st_mtime:
        return program
    compiler = shutil.which("cc")
    if compiler is None:
        raise FileNotFoundError("cc")
    flags = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "libqpid-proton"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    BUILD.mkdir(parents=True, exist_ok=True)
    command = [compiler, "-O2", "-Wall", "-Wextra", "-D_GNU_SOURCE", "-o", str(program)]
    subprocess.run([*command, str(source), *flags], check=True)
    return program
