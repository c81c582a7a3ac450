"""Every command of the how-to pages is run, in order, on free ports.

A page is a script: blocks with a title are files, `sh` blocks are run by one shell that stops
at the first failure. What needs root or another machine stands in `console` blocks.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.broker import PROJECT, form_environment

_SLOW = ("pair-two-namespaces", "read-a-queue-from-spark", "repair-dead-letters")
PAGES = [
    pytest.param(page, id=page.stem, marks=[pytest.mark.slow] if page.stem in _SLOW else [])
    for page in sorted((PROJECT / "docs" / "how-to").glob("*.md"))
]
_BLOCK = re.compile(r"^```(\w+)(?: title=(\S+))?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_PORTS = ("5671", "5672", "5673", "5300", "5301")


def free_ports(count: int) -> list[str]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found = [str(s.getsockname()[1]) for s in sockets]
    for s in sockets:
        s.close()
    return found


def script_of(page: Path, directory: Path) -> str:
    """Write the page's files; give its commands."""
    text = page.read_text()
    free = dict(zip(_PORTS, free_ports(len(_PORTS)), strict=True))
    for port, instead in free.items():
        text = re.sub(rf"\b{port}\b", instead, text)
    # Where the command line looks by itself is the default port.
    commands = [f"export TWINBUS_ADMIN_ENDPOINT=localhost:{free['5300']}\n"]
    for language, title, body in _BLOCK.findall(text):
        if title:
            (directory / title).write_text(body)
        elif language == "sh":
            commands.append(body)
    return "".join(commands)


@pytest.fixture
def shell_environment(tmp_path: Path) -> dict[str, str]:
    """`twinbus` and `python` are the ones under test."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, line in (("twinbus", "-m twinbus "), ("python", "")):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {line}"$@"\n')
        program.chmod(0o755)
    environment = form_environment(os.environ.get("TWINBUS_FORM"))
    for name in ("TWINBUS_CONNECTION", "TWINBUS_SAS_KEY", "TWINBUS_CA"):
        environment.pop(name, None)
    return environment | {"PATH": f"{programs}:{environment['PATH']}"}


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_the_page(
    page: Path, tmp_path: Path, shell_environment: dict[str, str]
) -> None:
    directory = tmp_path / "work"
    directory.mkdir()
    script = "set -euxo pipefail -m\n" + script_of(page, directory)
    # What the page leaves running must not hold the pipes open: output goes to a file.
    with (tmp_path / "output").open("w+") as output:
        shell = subprocess.Popen(
            ["bash", "-c", script],
            cwd=directory,
            env=shell_environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = shell.wait(timeout=270)
        finally:
            _end_session(shell.pid)
        output.seek(0)
        assert status == 0, output.read()[-8000:]


def _end_session(leader: int) -> None:
    """End whatever the shell left behind: each of its jobs is a group of its own."""
    listed = subprocess.run(["ps", "-o", "pid=", "-s", str(leader)], capture_output=True, text=True)
    for pid in listed.stdout.split():
        try:
            os.kill(int(pid), signal.SIGKILL)
        except ProcessLookupError:
            continue
