"""Goal: hostile bytes break no reader: neither those that are kept nor new ones.

Method: every kept input through its target, in the form under test; then a short coverage-guided
run of each target in a process of its own. `make fuzz SECONDS=1800` is the long form.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.run import CORPUS, NAMES
from fuzz.targets import TARGETS

PROJECT = Path(__file__).parents[2]
SHORT_S = 3


def test_every_target_can_be_run_and_has_seeds() -> None:
    assert set(NAMES) == set(TARGETS) == {folder.name for folder in CORPUS.iterdir()}


@pytest.mark.parametrize("name", NAMES)
def test_kept_inputs_break_nothing(name: str) -> None:
    for kept in sorted((CORPUS / name).iterdir()):
        try:
            TARGETS[name](kept.read_bytes())
        except Exception as error:
            raise AssertionError(f"python -m fuzz.run {name} {kept}") from error


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_short_run_finds_nothing(name: str) -> None:
    pytest.importorskip("atheris", reason="atheris is made for Linux")
    command = [sys.executable, "-m", "fuzz.run", name, "--seconds", str(SHORT_S)]
    ran = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    runs = re.search(r"([\d,]+) runs", ran.stdout)
    assert runs is not None, ran.stdout
    assert int(runs[1].replace(",", "")) > 10, ran.stdout
