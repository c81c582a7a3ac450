"""Compiles the hot path with mypyc where a C compiler is at hand.

The same source runs interpreted where none is: the extension is optional, and the
install says which form it made. `TWINBUS_COMPILE=0` asks for the interpreted form.
"""

import os
import sys
from pathlib import Path

from setuptools import setup

# What a message passes through between the socket and the journal. Everything else
# (asyncio glue, admin API, command line) stays interpreted.
HOT = ["amqp", "engine", "server/bridge", "server/replies", "server/transacting"]


def hot_modules() -> list[str]:
    root = Path("src/twinbus")
    found: list[str] = []
    for name in HOT:
        path = root / name
        if path.is_dir():
            found += sorted(str(p) for p in path.glob("*.py") if p.name != "__init__.py")
        else:
            found.append(str(path.with_suffix(".py")))
    return found


def extensions() -> list:
    if os.environ.get("TWINBUS_COMPILE", "1") == "0":
        return []
    try:
        from mypyc.build import mypycify
    except ImportError:
        print("twinbus: mypyc is not installed, the hot path stays interpreted", file=sys.stderr)
        return []
    modules = mypycify(
        [*hot_modules(), "--python-version=3.11"],
        opt_level="3",
        debug_level="0",
        group_name="twinbus",
    )
    for module in modules:
        module.optional = True
    return modules


setup(ext_modules=extensions())
