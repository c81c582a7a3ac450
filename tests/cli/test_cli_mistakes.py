"""What a user gets wrong is told in one line that says what and where, with its code."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from tests.cli.command_line import CommandLine, Warm, clean_environment

FAILURE, USAGE = 1, 2
ONE_PORT = ("--amqp-port", "0", "--amqps-port", "off", "--admin-port", "off")


@pytest.fixture
def alone(warm: Warm) -> CommandLine:
    """The command line where there is no broker."""
    return CommandLine(clean_environment(), warm)


def told(run: CommandLine, *arguments: str, code: int, stdin: str = "") -> str:
    """The one line that a command ends with."""
    done = run(*arguments, code=code, stdin=stdin)
    assert done.err.startswith("twinbus: ")
    assert done.err.count("\n") == 1
    return done.err


# --- serve ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.toml", 'memory_megabytes = "abc"', "memory_megabytes"),
        ("a.toml", '[namespaces.n.queues.q]\nmax_delivery_count = "ten"', "q.max_delivery_count"),
        ("a.toml", '[namespaces.n]\nqueues = ["q"]', "[namespaces.n.queues.NAME]"),
        ("a.toml", '[namespaces."a\\nb"]\nqueues = ["q"]', "namespaces.a b"),
        ("a.toml", "[[namespaces.n.queues.q.authorization_rules]]", "administration API"),
        ("a.json", json.dumps({"UserConfig": {"Namespaces": [{}]}}), "Namespaces[0] needs a Name"),
    ],
)
def test_a_wrong_configuration(
    alone: CommandLine, tmp_path: Path, name: str, text: str, says: str
) -> None:
    (tmp_path / name).write_text(text)
    options = ("--data-dir", str(tmp_path / "data"), "--config", str(tmp_path / name), *ONE_PORT)
    assert says in told(alone, "serve", *options, code=FAILURE)
    assert not (tmp_path / "data").exists()


def test_a_log_level_that_is_none(alone: CommandLine, tmp_path: Path) -> None:
    alone.environment["TWINBUS_LOG"] = "foo"
    line = told(alone, "serve", "--data-dir", str(tmp_path), *ONE_PORT, code=USAGE)
    assert "TWINBUS_LOG: 'foo' is no log level; use one of DEBUG" in line


def test_a_data_directory_that_cannot_be_used(alone: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for path, says in (
        (file, "is no directory"),
        (file / "data", "cannot be made: Not a directory"),
        # Nobody, not even root, makes a directory there.
        (Path("/proc/twinbus"), "cannot be made"),
    ):
        line = told(alone, "serve", "--data-dir", str(path), *ONE_PORT, code=FAILURE)
        assert f"the data directory {path} {says}" in line
        assert "--data-dir" in line
        assert "port" not in line


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe"])
def test_a_key_file_without_a_key(alone: CommandLine, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "root.key").write_bytes(content)
    line = told(alone, "serve", "--data-dir", str(tmp_path), *ONE_PORT, code=FAILURE)
    assert "root.key holds no key" in line


def test_a_port_or_host_that_cannot_be_listened_on(alone: CommandLine, tmp_path: Path) -> None:
    data = ("--data-dir", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for option in ("--amqp-port", "--amqps-port", "--admin-port"):
            off = [o if o.startswith("--") else "off" for o in ONE_PORT]
            line = told(alone, "serve", *data, *off, option, port, code=FAILURE)
            assert f"port {port} is taken" in line
            assert f"choose another {option}" in line
    for host in ("a..b", "host.invalid"):
        line = told(alone, "serve", *data, *ONE_PORT, "--host", host, code=FAILURE)
        assert f"'{host}' cannot be listened on" in line
        assert "another broker" not in line
    assert "'²' is no port" in alone("serve", "--amqp-port", "²", code=USAGE).err
