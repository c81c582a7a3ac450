"""`twinbus pipeline` before Spark starts: wrong usage is one clear line and the right code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command_line import CommandLine, clean_environment
from tests.support.broker import PROJECT

JOBS = ("cost", "dead-letters", "failovers", "latency", "audit")


def arguments(job: str, capture: Path) -> list[str]:
    given = ["pipeline", job, "--capture", str(capture)]
    return [*given, "--events", str(capture)] if job == "failovers" else given


@pytest.mark.parametrize("job", JOBS)
def test_l2_a_capture_that_is_not_there_is_not_found(
    run: CommandLine, tmp_path: Path, job: str
) -> None:
    done = run(*arguments(job, tmp_path / "nothing"), code=3)
    assert "twinbus serve --capture" in done.err
    assert str(tmp_path / "nothing") in done.err


def test_l5_spark_runs_in_one_place(run: CommandLine, tmp_path: Path) -> None:
    both = ("--master", "local", "--remote", "sc://x")
    assert "not both" in run(*arguments("cost", tmp_path), *both, code=2).err
    following = run(*arguments("cost", tmp_path), "--remote", "sc://x", "--follow", code=2)
    assert "--follow" in following.err


def test_l5_reports_are_written_to_a_directory(run: CommandLine, tmp_path: Path) -> None:
    said = run(*arguments("cost", tmp_path), "--out", "s3a://bucket/reports", code=2).err
    assert "is a URL" in said
    assert not Path("s3a:").exists()


def test_l4_a_transformation_is_one_thing(run: CommandLine) -> None:
    given = ("pipeline", "resubmit", "orders", "--sql", "true", "--python", "a:b")
    assert "not both" in run(*given, code=2).err


@pytest.mark.parametrize(
    ("name", "said"),
    [("fix", "module:function"), ("no_such_module:fix", "no_such_module")],
)
def test_l4_a_function_that_is_not_there_is_wrong_usage(
    run: CommandLine, name: str, said: str
) -> None:
    assert said in run("pipeline", "resubmit", "orders", "--python", name, code=2).err


def test_l5_without_the_extra_it_says_what_to_install(tmp_path: Path) -> None:
    """A machine that has no Spark; the other commands work there (and this one's help)."""
    (tmp_path / "pyspark.py").write_text("raise ImportError('no Spark here')\n")
    environment = clean_environment()
    environment["PYTHONPATH"] = f"{tmp_path}:{environment.get('PYTHONPATH', '')}"
    command = [sys.executable, "-m", "twinbus", "pipeline"]
    done = subprocess.run(
        [*command, "cost", "--capture", str(tmp_path)],
        env=environment, cwd=PROJECT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert "pip install 'twinbus[spark]'" in done.stderr
    assert "Traceback" not in done.stderr
    helped = subprocess.run(
        [*command, "--help"],
        env=environment, cwd=PROJECT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert helped.returncode == 0
    assert "resubmit" in helped.stdout
