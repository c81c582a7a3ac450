"""What every `twinbus pipeline` command does around its work: find Spark, start it, show steps.

Spark is imported inside functions only: the rest of the command line works without it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from twinbus.cli.failures import USAGE, CommandError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ADVICE = "this command needs Spark: install it with  pip install 'twinbus[spark]'"


@dataclass(frozen=True, slots=True)
class Engine:
    """Where Spark runs: here, on a cluster, or behind Spark Connect."""

    master: str | None
    remote: str | None
    memory: str

    def __post_init__(self) -> None:
        if self.master is not None and self.remote is not None:
            raise CommandError("give --master or --remote, not both", USAGE)


class Steps:
    """Says on standard error what is being done and how long it took; silent without a
    terminal, so that nothing but the result is ever piped."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(stderr=True, highlight=False)
        self._shown = sys.stderr.isatty()

    @contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        began = time.monotonic()
        if not self._shown:
            yield
            return
        with self._console.status(f"{what} …"):
            yield
        self._console.print(f"[green]✓[/green] {what} [dim]{time.monotonic() - began:.1f} s[/dim]")

    def say(self, text: str) -> None:
        if self._shown:
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
        with steps("Starting Spark"):
            running = session(
                f"twinbus {name}",
                engine.master,
                remote=engine.remote,
                memory=engine.memory,
                short=short,
            )
    except (NoJavaError, ImportError) as error:
        raise CommandError(str(error)) from error
    try:
        yield running
    except PySparkException as error:
        raise CommandError(_first_line(error)) from error
    finally:
        running.stop()


def _first_line(error: Exception) -> str:
    """What Spark says without the plan and the stack behind it.

    An error of Python code on a worker is told at the end of its traceback.
    """
    lines = [line for line in str(error).splitlines() if line.strip()]
    if any(line.startswith("Traceback") for line in lines):
        start = next(n for n, line in enumerate(lines) if line.startswith("Traceback"))
        own = [line for line in lines[start + 1 :] if not line.startswith((" ", "\t"))]
        return own[0] if own else lines[0]
    return lines[0] if lines else type(error).__name__
