"""The files in deploy/ say what the broker understands."""

import json
import re
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.cli.command_line import CommandLine
from tests.support.broker import PROJECT, Broker

DEPLOY = PROJECT / "deploy"


def instruction(name: str) -> list[str]:
    """The list that an instruction of the container file holds."""
    text = (DEPLOY / "Containerfile").read_text().replace("\\\n", "")
    (found,) = re.findall(rf"^{name}\b[^\[\n]*(\[.*\])$", text, re.MULTILINE)
    words: list[str] = json.loads(found)
    return words


def options_of(words: list[str]) -> set[str]:
    return {word for word in words if word.startswith("--")}


def test_the_container_s_health_check_asks_the_broker(broker: Broker) -> None:
    check = instruction("HEALTHCHECK")
    assert check[0] == "python"
    for port, healthy in ((broker.ready["ports"]["admin"], True), (1, False)):
        command = [sys.executable, *check[1:]]
        command[-1] = command[-1].replace(":5300/", f":{port}/")
        done = subprocess.run(command, capture_output=True)
        assert (done.returncode == 0) is healthy


def test_the_options_they_start_the_broker_with_exist(run: CommandLine) -> None:
    unit = (DEPLOY / "twinbus.service").read_text()
    (started,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    commands = (instruction("CMD"), started.split()[1:])
    told = run("serve", "--help").out
    for command in commands:
        assert command[0] == "serve"
        assert all(option in told for option in options_of(command))


def test_a_broker_that_takes_no_messages_has_started() -> None:
    """On a full disk it must be there, so that receiving makes room."""
    shell = shutil.which("curl") and shutil.which("sh")
    if shell is None:
        pytest.skip("curl is not installed here")
    unit = (DEPLOY / "twinbus.service").read_text()
    (waiting,) = re.findall(r"^ExecStartPost=/bin/sh -c '(.*)'$", unit, re.MULTILINE)

    class Failing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(503)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Failing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command = waiting.replace(":5300/", f":{server.server_port}/")
        try:
            subprocess.run([shell, "-c", command], check=True, timeout=5)
        finally:
            server.shutdown()


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd is not installed here")
    unit = (DEPLOY / "twinbus.service").read_text()
    copy = tmp_path / "twinbus.service"
    # Only what it starts is elsewhere here.
    copy.write_text(unit.replace("/opt/twinbus/bin/twinbus", sys.executable))
    done = subprocess.run([analyze, "verify", str(copy)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "twinbus.service" not in done.stderr
