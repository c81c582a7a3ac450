"""A time of day that tests set as they like, for a broker and its clients, not for the machine.

`run_with_clock` runs a function of a test module in a process of its own that has such a clock,
as has every broker that it starts. The function gets a directory and the `WallClock`.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.broker import PROJECT

_SOURCE = Path(__file__).with_suffix(".c")
_SECONDS_MAX = 120


class WallClock:
    """Sets the clock of this process, and of all that it started."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset_s = 0.0
        self._write()

    def jump(self, seconds: float) -> None:
        self._offset_s += seconds
        self._write()

    def _write(self) -> None:
        # In place: the file is mapped by everyone whose clock it is.
        with self._path.open("r+b" if self._path.exists() else "wb") as file:
            file.write(struct.pack("=q", round(self._offset_s * 1e9)))


def run_with_clock(function: Callable[[Path, WallClock], None], directory: Path) -> None:
    library, path = directory / "wall_clock.so", directory / "offset"
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("a C compiler on Linux is needed to give a process a clock of its own")
    build = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(_SOURCE)]
    subprocess.run(build, check=True)
    WallClock(path)
    name = function.__name__
    code = (
        "import sys, pathlib; from tests.faults.wall_clock import WallClock;"
        f"from {function.__module__} import {name};"
        f"{name}(pathlib.Path(sys.argv[1]), WallClock(pathlib.Path(sys.argv[2])))"
    )
    environment = os.environ | {"LD_PRELOAD": str(library), "TWINBUS_TEST_CLOCK": str(path)}
    command = [sys.executable, "-c", code, str(directory), str(path)]
    done = subprocess.run(
        command, env=environment, cwd=PROJECT, capture_output=True, text=True, timeout=_SECONDS_MAX
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-6000:]}"
