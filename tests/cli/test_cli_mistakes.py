"""What a user gets wrong is told in one line that says what and where, with its code."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from tests.cli.command_line import CommandLine, Warm, clean_environment

FAILURE, USAGE, NOT_FOUND, EXISTS = 1, 2, 3, 5
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
        (file, f"cannot be made: {file} is no directory"),
        (file / "data", f"cannot be made: {file} is no directory"),
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


# --- entities -------------------------------------------------------------------------


def test_durations_that_are_none(run: CommandLine, queue: str) -> None:
    for arguments in (
        ("queue", "create", "never-made", "--lock-duration", "xyz"),
        ("queue", "update", queue, "--lock-duration", "5"),
        ("topic", "create", "never-made", "--default-message-time-to-live", "1h"),
        ("subscription", "create", "t", "s", "--auto-delete-on-idle", "soon"),
        ("send", queue, "x", "--time-to-live", "abc"),
        ("send", queue, "x", "--schedule", "PT"),
    ):
        line = told(run, *arguments, code=USAGE)
        assert f"{arguments[-2]}: '{arguments[-1]}' is not a duration" in line
    run("queue", "show", "never-made", code=NOT_FOUND)
    # The broker's own limits are told with the same code.
    line = told(run, "queue", "create", "never-made", "--lock-duration", "PT1H", code=USAGE)
    assert "LockDuration must be from" in line


def test_an_entity_of_another_kind_is_not_found_and_not_removed(run: CommandLine) -> None:
    run("queue", "create", "kind-q")
    run("topic", "create", "kind-t")
    run("subscription", "create", "kind-t", "s")
    below = "kind-t/Subscriptions/s"
    for kind, name in (
        ("topic", "kind-q"), ("queue", "kind-t"), ("queue", below), ("topic", below)
    ):  # fmt: skip
        for what in (("show",), ("update", "--user-metadata", "x"), ("delete", "--yes")):
            line = told(run, kind, what[0], name, *what[1:], code=NOT_FOUND)
            assert f"there is no {kind} '{name}'" in line or "could not be found" in line
    for arguments in (
        ("subscription", "show", "kind-q", "s"),
        ("subscription", "list", "kind-q"),
        ("subscription", "create", "kind-q", "s"),
        ("subscription", "update", "kind-q", "s", "--lock-duration", "PT10S"),
        ("subscription", "delete", "kind-q", "s", "--yes"),
        ("rule", "show", "kind-q", "s", "r"),
        ("rule", "list", "kind-q", "s"),
        ("rule", "create", "kind-q", "s", "r"),
        ("rule", "update", "kind-q", "s", "r", "--sql", "a = 1"),
        ("rule", "delete", "kind-q", "s", "r", "--yes"),
    ):
        told(run, *arguments, code=NOT_FOUND)
    told(run, "topic", "create", "kind-q", code=EXISTS)
    run("queue", "show", "kind-q")
    run("subscription", "show", "kind-t", "s")
    run("topic", "delete", "kind-t", "--yes")


def test_names_that_are_none(run: CommandLine) -> None:
    for arguments in (
        ("send", "", "x"),
        ("receive", "/"),
        ("export", "", "file"),
        ("queue", "show", ""),
        ("topic", "delete", "", "--yes"),
        ("dead-letter", "list", ""),
    ):
        assert "a name is needed" in run(*arguments, code=USAGE).err
    assert "cannot be a name" in run("rule", "create", "t", "s", "a/b", code=USAGE).err


def test_an_update_without_a_change(run: CommandLine, queue: str) -> None:
    assert "nothing to change" in told(run, "queue", "update", queue, code=USAGE)
    assert "nothing to change" in told(run, "rule", "update", "t", "s", "r", code=USAGE)


def test_an_empty_setting_of_a_new_entity_is_left_to_the_broker(run: CommandLine) -> None:
    run("queue", "create", "plain", "--lock-duration", "", "--forward-to", "")
    assert run("queue", "show", "plain", "--json").json["lock_duration"] == "PT30S"


# --- the way to a namespace -----------------------------------------------------------


def test_places_and_certificates_that_are_none(run: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("no certificate")
    for option, value, says in (
        ("--admin-endpoint", "localhost:abc", "'localhost:abc' is no place"),
        ("--admin-endpoint", "localhost:99999", "'localhost:99999' is no place"),
        ("--admin-endpoint", "a..b:5300", "'a..b:5300' is no place"),
        ("--ca", str(file), "holds no certificate"),
        ("--ca", str(tmp_path), "cannot be read"),
        ("--ca", str(tmp_path / "none"), "there is no certificate file"),
    ):
        assert says in told(run, "queue", "list", option, value, code=USAGE)
    key = "SharedAccessKeyName=a;SharedAccessKey=b"
    for host in ("localhost:abc", "a..b"):
        line = told(run, "peek", "q", "--connection", f"Endpoint=sb://{host};{key}", code=USAGE)
        assert f"'{host}' is no place" in line


def test_a_certificate_that_is_not_trusted(run: CommandLine) -> None:
    del run.environment["TWINBUS_CA"]
    line = told(run, "queue", "list", code=FAILURE)
    assert "the broker's certificate is not trusted: unable to get local issuer" in line
    assert "Give --ca: for Twinbus it is tls/ca.pem" in line
    assert "_ssl" not in line


def test_a_syphon_that_could_never_work(run: CommandLine, tmp_path: Path) -> None:
    pair = ("--primary", run.environment["TWINBUS_CONNECTION"],
            "--secondary", run.environment["TWINBUS_CONNECTION"])  # fmt: skip
    assert "connection string" in told(run, "syphon", *pair, "--primary", "x", code=USAGE)
    line = told(run, "syphon", *pair, "--ca", str(tmp_path / "none"), code=USAGE)
    assert "there is no certificate file" in line
    for option in ("--poll", "--retry"):
        for value in ("0", "nan", "inf"):
            assert option in run("syphon", *pair, option, value, code=USAGE).err


def test_doctor_takes_a_wrong_connection_for_a_fault(run: CommandLine, tmp_path: Path) -> None:
    data = ("--data-dir", str(tmp_path / "data"), "--json")
    ports = ("--amqp-port", "0", "--amqps-port", "off", "--admin-port", "OFF")
    for option, value in (("--connection", "foo"), ("--admin-endpoint", "local host")):
        found = run("doctor", *data, *ports, option, value, code=FAILURE).json
        assert [one["check"] for one in found if one["level"] == "fault"] == ["connection"]
        assert not [one for one in found if "port" in one["check"]]
    assert "--amqp-port" in run("doctor", *data, "--amqp-port", "99999", code=USAGE).err


# --- messages -------------------------------------------------------------------------


def test_times_and_values_that_do_not_fit(run: CommandLine, queue: str) -> None:
    for option, value, says in (
        ("--time-to-live", "P60D", "P49D at most"),
        ("--schedule", "abc", "neither a delay like PT5M nor a time"),
        ("--schedule", "99999999999999999", "neither a delay like PT5M nor a time"),
        ("--schedule", "P999999999D", "beyond the year 9999"),
        ("--property", "n:int=2147483648", "is no int"),
        ("--property", "n:long=-9223372036854775809", "is no long"),
    ):
        assert says in told(run, "send", queue, "x", option, value, code=USAGE)
    run("send", queue, "x", "--property", "n:int=-2147483648", "--time-to-live", "P49D")
    assert len(run("peek", queue, "--json").lines) == 1
    assert "less than" in run("peek", queue, "--from-sequence-number", str(2**63), code=USAGE).err


def test_files_that_hold_no_messages(run: CommandLine, queue: str, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    for content, says in (
        (b"\xff\xfe", "is no text in UTF-8"),
        (b"[" * 20_000, "line 1: maximum recursion"),
        (b'{"body": {"value": ' + b"[" * 700 + b"]" * 700 + b"}}", "recursion"),
        (b'{"body": ' + b"9" * 5_000 + b"}", "line 1"),
    ):
        file.write_bytes(content)
        assert says in told(run, "send", queue, "--lines", str(file), code=FAILURE)
        assert says in told(run, "import", queue, str(file), code=FAILURE)
    assert run("peek", queue).out == ""


def test_an_export_to_where_no_file_can_be(run: CommandLine, queue: str, tmp_path: Path) -> None:
    line = told(run, "export", queue, str(tmp_path), code=USAGE)
    assert f"{tmp_path} is a directory" in line
    line = told(run, "export", queue, str(tmp_path / "none" / "file"), code=NOT_FOUND)
    assert f"there is no directory {tmp_path / 'none'}" in line
    assert "is a directory" in told(run, "export", queue, "", code=USAGE)


def test_a_topic_has_no_messages_of_its_own(run: CommandLine) -> None:
    run("topic", "create", "all-of-it")
    for arguments in (
        ("dead-letter", "list", "all-of-it"),
        ("dead-letter", "resubmit", "all-of-it"),
        ("dead-letter", "purge", "all-of-it", "--yes"),
        ("purge", "all-of-it", "--yes"),
        ("undefer", "all-of-it"),
        ("peek", "all-of-it", "--state", "locked"),
    ):
        assert "'all-of-it' is a topic" in told(run, *arguments, code=FAILURE)
    assert run("peek", "all-of-it").out == "", "it may have scheduled ones to show"


# --- capture --------------------------------------------------------------------------


def test_roots_that_are_none(alone: CommandLine, tmp_path: Path) -> None:
    none, file = str(tmp_path / "none"), tmp_path / "file"
    file.touch()
    (tmp_path / "data" / "journal").mkdir(parents=True)
    told(alone, "capture", "status", none, code=NOT_FOUND)
    told(alone, "capture", "run", none, str(tmp_path / "out"), code=NOT_FOUND)
    told(alone, "capture", "compact", none, str(tmp_path / "out"), code=NOT_FOUND)
    line = told(alone, "capture", "run", str(tmp_path / "data"), str(file), code=USAGE)
    assert f"{file} is no directory" in line
    line = told(alone, "capture", "compact", str(tmp_path), str(tmp_path), code=USAGE)
    assert "a root of their own" in line
