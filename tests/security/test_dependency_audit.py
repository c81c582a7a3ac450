"""Goal: the audit finds what it is there to find. Method: locks and lists with one fault each."""

from __future__ import annotations

import subprocess
import sys

from tests.support.broker import PROJECT
from tools.audit import read_lock, strays, unexplained

GOOD = "# made by uv\naiohttp==3.1 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n    # via x\n"


def test_the_lock_has_a_hash_for_every_package() -> None:
    assert read_lock(GOOD) == ({"aiohttp"}, [])
    assert read_lock(GOOD + "lark==1.2\n") == ({"aiohttp", "lark"}, ["lark has no hash"])
    assert read_lock("lark>=1.2\n")[1] == ["lark>=1.2 is not pinned to one version"]
    packages, problems = read_lock((PROJECT / "requirements.lock").read_text())
    assert len(packages) > 30
    assert problems == []


def test_every_runtime_dependency_has_a_reason() -> None:
    assert unexplained(["Mypy_Extensions>=1"], "| `mypy-extensions` | types |") == []
    assert len(unexplained(["lark>=1.2; x"], "| `larks` | parses |\n| `lark` | |")) == 1


def test_what_is_installed_beside_the_lock_is_found() -> None:
    assert strays({"lark", "twinbus", "pip"}, {"lark"}) == []
    assert strays({"lark", "stray"}, {"lark"}) == [
        "stray is installed and is not in requirements.lock"
    ]


def test_where_nothing_can_be_asked_that_is_said() -> None:
    """Either the data was there, or the first line says loudly that it was not."""
    ended = subprocess.run(
        [sys.executable, str(PROJECT / "tools" / "audit.py")], capture_output=True, text=True
    )
    assert ended.stderr == ""
    assert "NOT AUDITED" in ended.stdout or "No known vulnerabilities" in ended.stdout
    assert "packages in the lock" in ended.stdout.splitlines()[-1]
