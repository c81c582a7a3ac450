"""What every `twinbus pipeline` command does around its work: find Spark, start it, show steps.

Spark is imported inside functions only: the rest of the command line works without it.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from twinbus.cli.commands import Shared
from twinbus.cli.failures import FAILURE, NOT_FOUND, REFUSED, USAGE, CommandError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ADVICE = "this command needs Spark: install it with  pip install 'twinbus[spark]'"
#: What the exit code is when a broker refuses, by the condition that it names.
CODES = {
    "amqp:not-found": NOT_FOUND,
    "com.microsoft:auth-failed": REFUSED,
    "amqp:unauthorized-access": REFUSED,
}
_TRACEBACK = "Traceback (most recent call last)"
# An error of our own as a traceback ends with it: its class, what it says, and the condition if
# a broker has said that.
_OWN = re.compile(r"twinbus\.[\w.]+: (?P<said>.*?(?:\((?P<condition>[\w.]+:[\w:.-]+)\))?)")


@dataclass(frozen=True, slots=True)
class Engine:
    """Where Spark runs: here, on a cluster, or behind Spark Connect."""

    master: str | None
    remote: str | None
    memory: str

    def __post_init__(self) -> None:
        if self.master is not None and self.remote is not None:
            raise CommandError("give --master or --remote, not both", USAGE)


_Master = Annotated[
    str | None, typer.Option(help="A Spark cluster; without it, this machine.", metavar="URL")
]
_Connect = Annotated[
    str | None, typer.Option("--remote", help="A Spark Connect server.", metavar="URL")
]
_Memory = Annotated[str, typer.Option(help="Memory of the Java process on this machine.")]
ENGINE = Shared(
    {"master": (_Master, None), "remote_url": (_Connect, None), "memory": (_Memory, "2g")}, Engine
)


class Steps:
    """Says on standard error what is being done and how long it took; silent without a
    terminal, so that nothing but the result is ever piped."""

    def __init__(self) -> None:
        from rich.console import Console

        self.is_shown = sys.stderr.isatty()
        # A line of its own to the terminal: Java's is turned aside while it starts.
        own = os.fdopen(os.dup(sys.stderr.fileno()), "w") if self.is_shown else sys.stderr
        self._console = Console(file=own, highlight=False)

    @contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        from rich.text import Text

        began = time.monotonic()
        if not self.is_shown:
            yield
            return
        with self._console.status(Text(f"{what} …")):
            yield
        took = f" {time.monotonic() - began:.1f} s"
        self._console.print(Text("✓ ", "green").append(what, "default").append(took, "dim"))

    def say(self, text: str) -> None:
        if self.is_shown:
            self._console.out(text, highlight=False)


def need_spark() -> None:
    try:
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError as error:
        raise CommandError(_ADVICE) from error


@contextmanager
def spark(name: str, engine: Engine, steps: Steps, *, short: bool = True) -> Iterator[SparkSession]:
    """A session for one command; what Spark says of a failure becomes one clear line.

    `short`: a command that mostly starts and ends, or whose work is not done in Java.
    """
    need_spark()
    from pyspark.errors import PySparkException

    from twinbus.spark.java import NoJavaError
    from twinbus.spark.session import session

    try:
        with steps("Starting Spark"), _java_turned_aside(steps.is_shown):
            running = session(
                f"twinbus {name}",
                engine.master,
                remote=engine.remote,
                memory=engine.memory,
                short=short,
            )
    except (NoJavaError, ImportError) as error:
        raise CommandError(str(error)) from error
    except PySparkException as error:
        raise CommandError(f"Spark did not start: {_first_line(error)}") from error
    try:
        yield running
    except PySparkException as error:
        raise _told(error) from error
    finally:
        running.stop()


@contextmanager
def _java_turned_aside(wanted: bool) -> Iterator[None]:
    """What Java says on standard error would tear the display; it is told if it does not start."""
    if not wanted:
        yield
        return
    with tempfile.TemporaryFile() as said:
        terminal = os.dup(2)
        os.dup2(said.fileno(), 2)
        try:
            yield
        except BaseException:
            said.seek(0)
            os.write(terminal, said.read())
            raise
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)


def _told(error: Exception) -> CommandError:
    line = _first_line(error)
    own = _OWN.fullmatch(line)
    if own is None:
        return CommandError(line)
    return CommandError(own["said"], CODES.get(own["condition"], FAILURE))


def _first_line(error: Exception) -> str:
    """What Spark says without the plan and the stack behind it.

    An error of Python code is told at the end of its traceback. That of a worker begins a line;
    that of a data source on the driver follows Spark's own words in the same line.
    """
    lines = [line for line in str(error).splitlines() if line.strip()]
    start = next((n for n, line in enumerate(lines) if _TRACEBACK in line), None)
    if start is not None:
        own = [line for line in lines[start + 1 :] if not line.startswith((" ", "\t"))]
        return own[0] if own else lines[0]
    return lines[0] if lines else type(error).__name__
