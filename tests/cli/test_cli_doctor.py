"""`twinbus doctor` finds each planted fault, and none where there is none.

The planted faults: a port taken by another program; another AMQP broker on the port; a data
directory that is none; a full disk; a key that others may read; an empty key; an expired
certificate; a certificate with another's key; a certificate without the configured host; a
journal held by a process that is no broker; a damaged journal; one that a later version wrote; a
clock behind the journal; a broken configuration; too few open files; an SDK that is too old; a
wrong key in the connection string; an untrusted certificate; no Java that Spark could run on.
"""

from __future__ import annotations

import fcntl
import os
import resource
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command_line import CommandLine, Ended, Warm, clean_environment, command_line
from tests.support.broker import KEY, PROJECT, Broker
from twinbus.engine import records
from twinbus.journal import Journal
from twinbus.server.tls import own_certificate

NO_PORTS = ("--amqp-port", "0", "--amqps-port", "0", "--admin-port", "0")
FAULT = 1


@pytest.fixture
def doctor(warm: Warm) -> CommandLine:
    return CommandLine(clean_environment(), warm)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A broker's directory in which all is well."""
    directory = tmp_path / "data"
    own_certificate(directory / "tls", [], datetime.now(UTC))
    key = directory / "root.key"
    key.write_text(KEY + "\n")
    key.chmod(0o600)
    write_journal(directory, time.time_ns() // 1_000_000)
    return directory


def write_journal(directory: Path, now_ms: int) -> None:
    journal = Journal.open(directory / "journal")
    journal.replay(lambda *record: None)
    for number in range(3):
        journal.append(records.remembered(4, now_ms, b"record %d" % number))
        journal.commit_now(now_ms)
    journal.close()


def faults(told: Ended) -> dict[str, str]:
    """Check and text of every fault; each one says what to do."""
    found: list[dict[str, Any]] = [one for one in told.json if one["level"] == "fault"]
    assert all(one["advice"] for one in found)
    return {one["check"]: one["what"] for one in found}


def only_fault(doctor: CommandLine, data: Path, *options: str, ports: bool = False) -> str:
    """The check and text of the one fault that there is."""
    given = options if ports else (*NO_PORTS, *options)
    found = faults(doctor("doctor", "--data-dir", str(data), "--json", *given, code=FAULT))
    assert len(found) == 1, found
    ((check, what),) = found.items()
    return f"{check}: {what}"


def test_no_fault_where_there_is_none(doctor: CommandLine, data: Path, tmp_path: Path) -> None:
    told = doctor("doctor", "--data-dir", str(data), *NO_PORTS)
    assert told.out.endswith("No faults.\n")
    doctor("doctor", "--data-dir", str(tmp_path / "not yet there"), *NO_PORTS)


def test_no_fault_beside_a_running_broker(broker: Broker, warm: Warm) -> None:
    run = command_line(broker, warm)
    ports = broker.ready["ports"]
    told = run(
        "doctor", "--data-dir", str(broker.directory / "data"), "--amqp-port", str(ports["amqp"]),
        "--amqps-port", "0", "--admin-port", str(ports["admin"]), "--json",
    )  # fmt: skip
    found = {one["check"]: one for one in told.json}
    assert found[f"port {ports['amqp']} (amqp)"]["what"] == "the broker answers"
    assert found[f"port {ports['admin']} (admin)"]["what"] == "the broker answers"
    assert found["connection"]["level"] == "ok"


@contextmanager
def program_on_a_port(answer: bytes) -> Iterator[int]:
    """Something that listens, and answers whatever it is asked with the same bytes."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            client, _ = listening.accept()
            with client:
                client.recv(1024)
                client.sendall(answer)

        # It waits for ever if nobody comes; the test's end is not to wait for it.
        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1]


@pytest.mark.parametrize(
    ("answer", "who"),
    [(b"SSH-2.0-x\r\n", "another program"), (b"AMQP\x03\x01\x00\x00", "another broker")],
)
def test_a_port_that_is_taken(doctor: CommandLine, data: Path, answer: bytes, who: str) -> None:
    with program_on_a_port(answer) as port:
        options = ("--amqp-port", str(port), "--amqps-port", "0", "--admin-port", "0")
        found = only_fault(doctor, data, *options, ports=True)
    assert found == f"port {port} (amqp): {who} is on it"


@pytest.mark.parametrize(
    ("body", "who"),
    [
        (b'{"status": "failing", "reason": "the disk is full"}', "another broker"),
        (b"Service Unavailable", "another program"),
    ],
)
def test_a_broker_that_refuses_is_one(
    doctor: CommandLine, data: Path, body: bytes, who: str
) -> None:
    head = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: %d\r\n\r\n" % len(body)
    with program_on_a_port(head + body) as port:
        options = ("--amqp-port", "0", "--amqps-port", "0", "--admin-port", str(port))
        found = only_fault(doctor, data, *options, ports=True)
    assert found == f"port {port} (admin): {who} is on it"


@pytest.mark.parametrize("answer", [b"SSH-2.0-x\r\n", b"HTTP/1.1 200 OK\r\n", b""])
def test_a_program_on_the_admin_port_that_speaks_no_http(
    doctor: CommandLine, data: Path, answer: bytes
) -> None:
    with program_on_a_port(answer) as port:
        options = ("--amqp-port", "0", "--amqps-port", "0", "--admin-port", str(port))
        found = only_fault(doctor, data, *options, ports=True)
    assert found == f"port {port} (admin): another program is on it"


def test_a_proxy_is_not_asked_for_what_is_on_this_machine(broker: Broker, warm: Warm) -> None:
    environment = clean_environment() | {"http_proxy": "http://127.0.0.1:1"}
    environment.pop("no_proxy", None)
    data = str(broker.directory / "data")
    ports = broker.ready["ports"]
    options = ("--amqp-port", "0", "--amqps-port", "0", "--admin-port", str(ports["admin"]))
    told = CommandLine(environment, warm)("doctor", "--data-dir", data, "--json", *options)
    assert faults(told) == {}


def test_a_data_directory_that_is_a_file(doctor: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    assert "is not a directory" in only_fault(doctor, tmp_path / "data")


def test_a_full_disk(doctor: CommandLine, tmp_path: Path) -> None:
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "true"]).returncode:
        pytest.skip("a small disk cannot be made here: no user namespaces")
    small = tmp_path / "small"
    small.mkdir()
    script = 'mount -t tmpfs -o size=4m none "$1" && shift && exec "$@"'
    command = [sys.executable, "-m", "twinbus", "doctor", "--data-dir", str(small), *NO_PORTS]
    told = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, "sh", str(small), *command],
        env=doctor.environment, cwd=PROJECT, capture_output=True, text=True,
    )  # fmt: skip
    assert told.returncode == FAULT
    assert "FAULT   disk: only 4 MB free" in told.stdout


def test_a_key_that_others_may_read(doctor: CommandLine, data: Path) -> None:
    (data / "root.key").chmod(0o644)
    assert "may be read by others (mode 644)" in only_fault(doctor, data)


def test_a_key_that_the_broker_would_not_take(doctor: CommandLine, data: Path) -> None:
    (data / "root.key").write_bytes(b"\xff\x00\xfe")
    assert only_fault(doctor, data) == f"key: {data / 'root.key'} holds no key"


def test_an_empty_key(doctor: CommandLine, data: Path) -> None:
    (data / "root.key").write_text("\n")
    assert only_fault(doctor, data).startswith("key: ")


def test_an_expired_certificate(doctor: CommandLine, data: Path) -> None:
    shutil.rmtree(data / "tls")
    own_certificate(data / "tls", [], datetime.now(UTC) - timedelta(days=800))
    assert "certificate: it expired on" in only_fault(doctor, data)


def write_config(tmp_path: Path, certificate: Path, key: Path, host: str) -> str:
    file = tmp_path / "twinbus.toml"
    paths = f'certificate = "{certificate}"\nkey = "{key}"\n'
    file.write_text(f'{paths}[namespaces.shop]\nhosts = ["{host}"]\n')
    return str(file)


def test_a_certificate_with_another_s_key(doctor: CommandLine, data: Path, tmp_path: Path) -> None:
    own_certificate(tmp_path / "other", [], datetime.now(UTC))
    mixed = (data / "tls" / "server.pem", tmp_path / "other" / "server.pem")
    found = only_fault(doctor, data, "--config", write_config(tmp_path, *mixed, "localhost"))
    assert "cannot be used" in found
    assert found.startswith("certificate: ")


def test_a_certificate_without_the_host(doctor: CommandLine, data: Path, tmp_path: Path) -> None:
    own = data / "tls" / "server.pem"
    config = write_config(tmp_path, own, own, "bus.example.com")
    assert "does not hold for bus.example.com" in only_fault(doctor, data, "--config", config)


def test_a_journal_that_another_process_holds(doctor: CommandLine, data: Path) -> None:
    handle = os.open(data / "journal" / "lock", os.O_RDWR)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        assert f"holds {data / 'journal'}" in only_fault(doctor, data)
    finally:
        os.close(handle)


def test_a_damaged_journal(doctor: CommandLine, data: Path) -> None:
    (segment,) = (data / "journal").glob("*.seg")
    content = bytearray(segment.read_bytes())
    content[content.index(b"record 0")] ^= 0xFF
    segment.write_bytes(content)
    assert "a damaged batch" in only_fault(doctor, data)


@pytest.mark.parametrize("what", ["record of kind 99", "batch"])
def test_a_journal_that_a_later_version_wrote(doctor: CommandLine, data: Path, what: str) -> None:
    """Doctor says so, and serve in one line; neither changes anything."""
    (segment,) = (data / "journal").glob("*.seg")
    if what == "batch":
        head, _, tail = segment.read_bytes().rpartition(b"TWJ1")
        segment.write_bytes(head + b"TWJ2" + tail)
    else:
        journal = Journal.open(data / "journal")
        journal.replay(lambda *record: None)
        journal.append(bytes((99,)))
        journal.commit_now(time.time_ns() // 1_000_000)
        journal.close()
    before = segment.read_bytes()
    assert f"the {what} at offset" in only_fault(doctor, data)
    command = [sys.executable, "-m", "twinbus", "serve", "--data-dir", str(data)]
    ports = ("--amqp-port", "0", "--amqps-port", "off", "--admin-port", "off")
    told = subprocess.run(
        [*command, *ports], env=doctor.environment, cwd=PROJECT, capture_output=True, text=True
    )
    assert told.returncode == FAULT
    assert told.stderr.count("\n") == 1
    assert f"the {what} at offset" in told.stderr
    assert "was written by a newer Twinbus" in told.stderr
    assert segment.read_bytes() == before


def test_a_clock_behind_the_journal(doctor: CommandLine, data: Path) -> None:
    shutil.rmtree(data / "journal")
    write_journal(data, time.time_ns() // 1_000_000 + 86_400_000)
    assert "behind the journal" in only_fault(doctor, data)


def test_a_broken_configuration(doctor: CommandLine, data: Path, tmp_path: Path) -> None:
    config = tmp_path / "twinbus.toml"
    config.write_text("[namespaces.shop.queues.orders]\nlock_time = 5\n")
    found = only_fault(doctor, data, "--config", str(config))
    assert "'lock_time' is no setting" in found


def test_too_few_open_files(doctor: CommandLine, data: Path) -> None:
    command = [sys.executable, "-m", "twinbus", "doctor", "--data-dir", str(data), *NO_PORTS]
    told = subprocess.run(
        command, env=doctor.environment, cwd=PROJECT, capture_output=True, text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256)),
    )  # fmt: skip
    assert told.returncode == FAULT
    assert "only 256 allowed" in told.stdout


def test_an_sdk_that_is_too_old(doctor: CommandLine, data: Path, tmp_path: Path) -> None:
    old = tmp_path / "site" / "azure_servicebus-7.0.0.dist-info"
    old.mkdir(parents=True)
    (old / "METADATA").write_text("Metadata-Version: 2.1\nName: azure-servicebus\nVersion: 7.0.0\n")
    environment = dict(doctor.environment)
    paths = [str(old.parent), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    command = [sys.executable, "-m", "twinbus", "doctor", "--data-dir", str(data), *NO_PORTS]
    told = subprocess.run(command, env=environment, cwd=PROJECT, capture_output=True, text=True)
    assert told.returncode == FAULT
    assert "azure-servicebus 7.0.0 is too old" in told.stdout


def test_a_java_that_is_none(doctor: CommandLine, data: Path, tmp_path: Path) -> None:
    environment = doctor.environment | {"TWINBUS_JAVA_HOME": str(tmp_path)}
    told = only_fault(CommandLine(environment, doctor.warm), data)
    assert "has no program bin/java" in told


def test_a_wrong_key_and_an_untrusted_certificate(broker: Broker, warm: Warm, data: Path) -> None:
    run = command_line(broker, warm)
    wrong = broker.connection_string.replace("SharedAccessKey=", "SharedAccessKey=x")
    assert "refuses the key" in only_fault(run, data, "--connection", wrong)
    other = str(data / "tls" / "ca.pem")
    assert "not trusted" in only_fault(run, data, "--ca", other)
    nobody = only_fault(run, data, "--admin-endpoint", "localhost:1")
    assert "refused" in nobody
