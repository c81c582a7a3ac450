"""The command line as users run it: in a process of its own, with nothing but its options.

Enters: arguments, standard input, and the broker to talk to. Leaves: the exit code and what was
printed. It never calls a command's function itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.broker import PROJECT, Broker, form_environment

FORM = os.environ.get("TWINBUS_FORM")
VARIABLES = ("TWINBUS_CONNECTION", "TWINBUS_ADMIN_ENDPOINT", "TWINBUS_CA", "TWINBUS_SAS_KEY")


def clean_environment() -> dict[str, str]:
    """The environment of a command that was told nothing."""
    environment = form_environment(FORM)
    for name in VARIABLES:
        environment.pop(name, None)
    # Wide enough that no table is wrapped.
    return environment | {"COLUMNS": "200"}


@dataclass
class Ended:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


class Warm:
    """The process that commands are forked off (see `warm`)."""

    def __init__(self, directory: Path) -> None:
        self._files = {name: directory / name for name in ("stdin", "stdout", "stderr")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.cli.warm"],
            env=clean_environment(), cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip

    def run(self, arguments: tuple[str, ...], environment: dict[str, str], stdin: str) -> Ended:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._files["stdin"].write_text(stdin)
        files = {name: str(path) for name, path in self._files.items()}
        order = {"arguments": arguments, "environment": environment, **files}
        print(json.dumps(order), file=self._process.stdin, flush=True)
        code = int(self._process.stdout.readline())
        return Ended(code, self._files["stdout"].read_text(), self._files["stderr"].read_text())

    def close(self) -> None:
        # Both pipes are closed here; the process ends with its input.
        self._process.communicate(timeout=30)


@dataclass
class CommandLine:
    environment: dict[str, str]
    warm: Warm

    def __call__(self, *arguments: str, stdin: str = "", code: int = 0) -> Ended:
        """Run `twinbus …`; it must end with that code, and never with a traceback."""
        done = self.warm.run(arguments, self.environment, stdin)
        assert done.code == code, f"{arguments}: {done.code}\n{done.out}{done.err}"
        assert "Traceback" not in done.err
        return done

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start `python -m twinbus …` and let it go on."""
        return subprocess.Popen(
            [sys.executable, "-m", "twinbus", *arguments],
            env=self.environment, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip


def command_line(broker: Broker, warm: Warm) -> CommandLine:
    """The command line with a broker's addresses in its environment."""
    addresses = {
        "TWINBUS_CONNECTION": broker.connection_string,
        "TWINBUS_ADMIN_ENDPOINT": f"localhost:{broker.ready['ports']['admin']}",
        "TWINBUS_CA": str(broker.directory / "data" / "tls" / "ca.pem"),
    }
    return CommandLine(clean_environment() | addresses, warm)
