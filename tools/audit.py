"""Audits what the project stands on: `python tools/audit.py`, part of the checks.

Always: every package in the lock has hashes and an exact version; SECURITY.md says why each
runtime dependency is there; the environment holds nothing that the lock does not know. Where the
data source can be reached, pip-audit looks for known weaknesses; where it cannot, that is said
loudly. Exits with 1 for anything found. It changes nothing and installs nothing.
"""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

PROJECT = Path(__file__).resolve().parents[1]
LOCK = PROJECT / "requirements.lock"
#: Where pip-audit asks; a small question that any answer to will do.
SOURCE = "https://api.osv.dev/v1/query"
SOURCE_WAIT_S = 10
#: Ours, and what every environment begins with.
_ALWAYS = {"twinbus", "pip", "setuptools", "wheel"}
_PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==(\S+)")
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*")


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def read_lock(text: str) -> tuple[set[str], list[str]]:
    """The packages of a lock, and what is wrong with it."""
    packages: set[str] = set()
    problems: list[str] = []
    for entry in re.sub(r"\\\n", " ", text).splitlines():
        line = entry.strip()
        if not line or line.startswith(("#", "-")):
            continue
        pin = _PIN.match(line)
        if pin is None:
            problems.append(f"{line.split()[0]} is not pinned to one version")
            continue
        packages.add(normal(pin[1]))
        if "--hash=sha256:" not in line:
            problems.append(f"{pin[1]} has no hash")
    return packages, problems


def unexplained(dependencies: list[str], security: str) -> list[str]:
    """Runtime dependencies that SECURITY.md does not list with a reason."""
    listed = {
        normal(name) for name in re.findall(r"^\| `([^`]+)` \| [^|\s]", security, re.MULTILINE)
    }
    names = [match[0] for text in dependencies if (match := _NAME.match(text))]
    return [f"SECURITY.md does not say why {name} is needed" for name in names
            if normal(name) not in listed]  # fmt: skip


def strays(installed: set[str], packages: set[str]) -> list[str]:
    unknown = sorted(installed - packages - _ALWAYS)
    return [f"{name} is installed and is not in requirements.lock" for name in unknown]


def why_no_data() -> str | None:
    """Say why nothing can be asked about weaknesses; None if it can."""
    try:
        importlib.metadata.version("pip-audit")
    except importlib.metadata.PackageNotFoundError:
        return "pip-audit is not installed"
    question = b'{"package": {"name": "pip", "ecosystem": "PyPI"}, "version": "1.0"}'
    try:
        with urlopen(Request(SOURCE, question), timeout=SOURCE_WAIT_S) as answer:
            answer.read()
    except (URLError, OSError) as error:
        return f"{SOURCE} cannot be reached ({error})"
    return None


def known_weaknesses() -> list[str]:
    options = (
        "--no-deps",
        "--disable-pip",
        "--progress-spinner=off",
        "--vulnerability-service=osv",
    )
    command = [sys.executable, "-m", "pip_audit", f"--requirement={LOCK}", *options]
    ended = subprocess.run(command, capture_output=True, text=True)
    print(ended.stdout, end="")
    if ended.returncode == 0:
        return []
    return [f"pip-audit: {line}" for line in ended.stderr.splitlines() if line.strip()] or [
        "pip-audit has found weaknesses; see above"
    ]


def main() -> int:
    packages, problems = read_lock(LOCK.read_text())
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    problems += unexplained(project["dependencies"], (PROJECT / "SECURITY.md").read_text())
    installed = {normal(found.name) for found in importlib.metadata.distributions() if found.name}
    problems += strays(installed, packages)
    reason = why_no_data()
    if reason is None:
        problems += known_weaknesses()
    else:
        print(f"*** NOT AUDITED for known weaknesses: {reason}. Run this where it can be. ***")
    for problem in problems:
        print(f"audit: {problem}")
    print(f"audit: {len(packages)} packages in the lock, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
