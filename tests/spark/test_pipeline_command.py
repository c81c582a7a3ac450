"""`twinbus pipeline` as users run it: exit codes, JSON alone on standard output, following."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.spark.bulk_kit import ids, send
from tests.spark.conftest import FORM
from tests.spark.jobs.synthetic import generate
from tests.support.broker import PROJECT, Broker, form_environment
from tests.support.queues import QueuePool
from twinbus.pairing.names import backlog_queue_name


def start(job: str, capture: Path, out: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "twinbus", "pipeline", job, "--capture", str(capture)]
    command += ["--out", str(out), "--master", "local[2]", "--memory", "1g", *options]
    return subprocess.Popen(
        command, env=form_environment(FORM), cwd=PROJECT, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def done(*arguments: str) -> Any:
    """Run a command to its end; gives its JSON."""
    command = [sys.executable, "-m", "twinbus", "pipeline", *arguments, "--json"]
    command += ["--master", "local[2]", "--memory", "1g"]
    ended = subprocess.run(
        command, env=form_environment(FORM), cwd=PROJECT, capture_output=True, text=True,
        timeout=200,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def tables(line: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(line)["tables"]
    return found


@pytest.mark.slow
def test_l2_an_audit_names_what_is_wrong_and_exits_with_1(tmp_path: Path) -> None:
    capture, out = tmp_path / "capture", tmp_path / "out"
    story = generate(capture, 4_000, rows_per_file=1_000)
    story.files[1].unlink()
    process = start("audit", capture, out)
    said, err = process.communicate(timeout=200)
    assert process.returncode == 1, err
    assert "Audit: 1 violation" in said
    assert "missing_file" in said
    assert "missing_file" in (out / "audit" / "report.html").read_text()
    assert sorted(path.name for path in (out / "audit").iterdir() if path.is_dir()) == [
        "checks", "entities", "moves", "verdict", "violations",
    ]  # fmt: skip


@pytest.mark.slow
def test_l2_an_audit_of_nothing_says_so_and_exits_with_1(tmp_path: Path) -> None:
    capture = tmp_path / "capture"
    capture.mkdir()
    process = start("audit", capture, tmp_path / "out")
    said, err = process.communicate(timeout=200)
    assert process.returncode == 1, err
    assert "Audit: nothing captured" in said


@pytest.mark.long
def test_l2_follow_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    """Two runs that follow see what one run over everything would have seen."""
    capture, out = tmp_path / "capture", tmp_path / "out"
    story = generate(capture, 3_000, rows_per_file=1_000, burst=100)
    late = story.files[1]
    late_bytes = late.read_bytes()
    late.unlink()

    def sent(found: dict[str, Any]) -> int:
        return sum(row["operations"] for row in found["operations"] if row["kind"] == "sent")

    before = _follow_until(start("cost", capture, out, "--follow", "--json"), lambda found: True)
    late.write_bytes(late_bytes)
    # The last batch may have been told and not been committed: then it is told again first.
    after = _follow_until(
        start("cost", capture, out, "--follow", "--json"), lambda found: sent(found) != sent(before)
    )
    assert 0 < sent(before) < sent(after) == story.sent


@pytest.mark.long
def test_l2_follow_refuses_another_capture_in_the_same_place(tmp_path: Path) -> None:
    one, other, out = tmp_path / "one", tmp_path / "other", tmp_path / "out"
    generate(one, 1_000)
    generate(other, 1_000)
    _follow_until(start("cost", one, out, "--follow", "--json"), lambda found: True)
    process = start("cost", other, out, "--follow")
    _, err = process.communicate(timeout=200)
    assert process.returncode == 2, err
    assert f"holds what was found in {one}" in err
    assert "Traceback" not in err


def _follow_until(
    process: subprocess.Popen[str], enough: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """Take line after line until one will do, then end the command in good order."""
    assert process.stdout is not None
    try:
        while not enough(found := tables(process.stdout.readline())):
            continue
    finally:
        process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return found


@pytest.mark.long
def test_l4_export_load_and_syphon_say_what_they_did(
    broker: Broker, pool: QueuePool, tmp_path: Path
) -> None:
    """From a queue to files, from files to a backlog queue, and home again."""
    source, home = pool.take(), pool.take()
    connection = ("--connection", broker.connection_string)
    for_home = [("x-ms-path", home)]
    rows = [
        {"message_id": f"m{n}", "body": b"x", "application_properties": for_home} for n in range(9)
    ]
    send(broker.connection_string, source, rows)
    directory = str(tmp_path / "files")
    assert done("export", source, "--to", directory, *connection)["exported"] == 9
    backlog = backlog_queue_name("localhost", 0)
    with Broker(tmp_path / "secondary", {backlog: {}}, FORM) as secondary:
        text = secondary.connection_string
        assert done("load", directory, "--to", backlog, "--connection", text)["loaded"] == 9
        pair = ("--primary", broker.connection_string, "--secondary", text)
        moved = done("syphon", *pair, "--backlog-queues", "1")
        assert ids(text, backlog) == []
    assert moved == {"sent": 9, "returned": 0, "dead_lettered": 0, "reasons": {}}
    assert sorted(ids(broker.connection_string, home)) == [f"m{n}" for n in range(9)]
