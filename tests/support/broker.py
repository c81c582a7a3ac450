"""Starts a real broker in another process, on free ports, and ends it in every way.

Enters: a directory, the queues to declare and the form to run (compiled or interpreted).
Leaves: ports, a connection string, and the power to terminate, kill and restart it on the
same directory and ports. It must not import the broker: what it starts is what users start.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
KEY_NAME = "RootManageSharedAccessKey"
KEY = "dHdpbmJ1cy10ZXN0cy1rZXktMzItYnl0ZXMtbG9uZyE="

Properties = dict[str, object]


def form_environment(form: str | None) -> dict[str, str]:
    """The environment in which `python -m twinbus` runs in that form.

    None keeps what the caller runs with; `interpreted` reads the source tree; `compiled`
    takes what is installed beside the interpreter.
    """
    environment = dict(os.environ)
    if form == "interpreted":
        environment["PYTHONPATH"] = str(PROJECT / "src")
    elif form == "compiled":
        environment.pop("PYTHONPATH", None)
    elif form is not None:
        raise ValueError(f"TWINBUS_FORM is 'compiled' or 'interpreted', not {form!r}")
    return environment


def form_found(form: str | None) -> str | None:
    """What that environment really holds: compiled, interpreted, or None for no broker."""
    question = (
        "import pathlib, twinbus.__main__ as m;"
        "print(any(pathlib.Path(m.__file__).parent.glob('amqp/*.so')))"
    )
    command = [sys.executable, "-c", question]
    answer = subprocess.run(
        command, env=form_environment(form), cwd=PROJECT, capture_output=True, text=True
    )
    if answer.returncode:
        return None
    return "compiled" if answer.stdout.strip() == "True" else "interpreted"


def emulator_config(queues: dict[str, Properties]) -> dict[str, Any]:
    """The official emulator's Config.json with these queues."""
    declared = [{"Name": name, "Properties": given} for name, given in queues.items()]
    namespace = {"Name": "sbemulatorns", "Queues": declared, "Topics": []}
    return {"UserConfig": {"Namespaces": [namespace], "Logging": {"Type": "File"}}}


@dataclass
class Broker:
    """One broker on one directory; its ports stay the same over restarts."""

    directory: Path
    queues: dict[str, Properties] = field(default_factory=dict)
    form: str | None = None
    options: tuple[str, ...] = ("--admin-port", "off")
    #: What `python -m` runs.
    module: str = "twinbus"
    amqp_port: int = 0
    #: How many files it may have open; None for as many as the tests themselves.
    open_files_max: int | None = None
    start_seconds_max: float = 120.0
    start_seconds: float = 0.0
    ready: dict[str, Any] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> Broker:
        assert self.process is None, "already running"
        self.directory.mkdir(parents=True, exist_ok=True)
        config = self.directory / "Config.json"
        config.write_text(json.dumps(emulator_config(self.queues)))
        command = [sys.executable, "-m", self.module, "serve", "--json", "--host", "127.0.0.1"]
        command += ["--data-dir", str(self.directory / "data"), "--config", str(config)]
        command += ["--amqp-port", str(self.amqp_port), "--amqps-port", "off", *self.options]
        environment = form_environment(self.form) | {"TWINBUS_SAS_KEY": KEY}
        begun = time.monotonic()
        with self._stdout.open("wb") as out, self._stderr.open("ab") as err:
            self.process = subprocess.Popen(
                command, env=environment, cwd=PROJECT, stdout=out, stderr=err
            )
            if self.open_files_max is not None:
                limits = (self.open_files_max, self.open_files_max)
                resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE, limits)
        self.ready = self._await_ready(begun + self.start_seconds_max)
        self.start_seconds = time.monotonic() - begun
        self.amqp_port = self.ready["ports"]["amqp"]
        return self

    def _await_ready(self, deadline: float) -> dict[str, Any]:
        # A file, not a pipe: a broker that goes on printing never blocks on its reader.
        assert self.process is not None
        while time.monotonic() < deadline:
            line, end, _ = self._stdout.read_bytes().partition(b"\n")
            if end:
                ready: dict[str, Any] = json.loads(line)
                return ready
            if self.process.poll() is not None:
                break
            time.sleep(0.002)
        self.kill()
        raise RuntimeError(f"the broker did not start:\n{self._stderr.read_text()[-4000:]}")

    def terminate(self, seconds_max: float = 30.0) -> int:
        """Ask it to stop (SIGTERM); gives its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(seconds_max)
        self.process = None
        return code

    def kill(self) -> None:
        """End it as a crash would (SIGKILL)."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def restart(self) -> Broker:
        self.terminate()
        return self.start()

    def __enter__(self) -> Broker:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            try:
                self.terminate()
            finally:
                self.kill()

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def connection_string(self) -> str:
        return (
            f"Endpoint=sb://localhost:{self.amqp_port};SharedAccessKeyName={KEY_NAME};"
            f"SharedAccessKey={KEY};UseDevelopmentEmulator=true"
        )

    @property
    def log(self) -> str:
        return self._stderr.read_text()

    @property
    def _stdout(self) -> Path:
        return self.directory / "stdout.json"

    @property
    def _stderr(self) -> Path:
        return self.directory / "stderr.log"
