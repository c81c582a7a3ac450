"""House rules that no linter knows."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
LINES_MAX = 600
FUNCTION_LINES_MAX = 75


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_are_short(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= LINES_MAX
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= FUNCTION_LINES_MAX, f"{node.name} has {length} lines"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_say_what_they_are_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), "no module docstring"


def test_importing_twinbus_needs_little() -> None:
    """`import twinbus` works without a compiler, and without the SDK or Spark."""
    code = (
        "import sys, twinbus; print([m for m in ('azure', 'pyspark', 'lark') if m in sys.modules])"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "[]"


def test_behaviour_is_listed_and_proved() -> None:
    """Every rule has a place and a test, and docs/behaviour.md says which."""
    answer = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "behaviour.py"), "--check"],
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 0, answer.stderr
