"""What a command prints: for people (tables, progress) or for programs (JSON).

Results go to standard output. Progress and remarks go to standard error, progress only when
that is a terminal, so that output can be piped at any time. What is for people has no
characters that steer a terminal, whoever wrote them; what is for programs stays as it is. Rich is
imported when something is printed with it: a broker that starts has no use for it.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import typer

from twinbus.cli.failures import USAGE, CommandError
from twinbus.forms.plain import printable


class Printer:
    def __init__(self, json_output: bool) -> None:
        from rich.console import Console

        self.json_output = json_output
        self._console = Console(highlight=False, soft_wrap=True)
        self._aside = Console(stderr=True, highlight=False)

    def result(self, found: Mapping[str, Any], *lines: str) -> None:
        """What became of it: an object for programs, a sentence or some lines for people."""
        if self.json_output:
            self._json(found)
            return
        for line in lines:
            self._console.out(printable(line), highlight=False)

    def record(self, found: Mapping[str, Any]) -> None:
        """One thing with its properties."""
        if self.json_output:
            self._json(found)
            return
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        for name, value in found.items():
            if value is not None:
                table.add_row(Text(name, style="bold"), Text(_cell(value)))
        self._console.print(table)

    def rows(self, found: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
        """A list of things: all of their properties for programs, some columns for people."""
        if self.json_output:
            self._json(found)
            return
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in columns:
            table.add_column(column.replace("_", " "))
        for row in found:
            table.add_row(*(Text(_cell(row.get(column))) for column in columns))
        self._console.print(table)

    def line(self, found: Mapping[str, Any], text: Callable[[Mapping[str, Any]], str]) -> None:
        """One of many things that come one by one: a line of JSON, or a line for people."""
        line = json.dumps(found, ensure_ascii=False) if self.json_output else text(found)
        print(line, flush=True)

    def aside(self, sentence: str) -> None:
        """A remark that is not part of the result."""
        self._aside.out(printable(sentence), highlight=False)

    @contextmanager
    def progress(self, what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        """Show how far a long thing has come; gives the function to tell it with."""
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )

        columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        quiet = not sys.stderr.isatty()
        with Progress(*columns, console=self._aside, transient=True, disable=quiet) as bar:
            task = bar.add_task(what, total=total)
            yield lambda count: bar.advance(task, count)

    @contextmanager
    def counted(self, what: str, tell: Callable[[int], None]) -> Iterator[Callable[[int], None]]:
        """Progress whose sum is told at the end, and also of a run that fails with some done."""
        total = 0

        def count(done: int) -> None:
            nonlocal total
            total += done
            advance(done)

        try:
            with self.progress(what) as advance:
                yield count
        except BaseException:
            if total:
                tell(total)
            raise
        tell(total)

    def _json(self, found: object) -> None:
        print(json.dumps(found, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None))


def confirm(question: str, yes: bool) -> None:
    """Ask before something is destroyed; without a terminal only `--yes` will do."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandError(f"{question} Say --yes: there is no terminal to ask on.", USAGE)
    typer.confirm(question, abort=True)


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping | list):
        return printable(json.dumps(value, ensure_ascii=False))
    return printable(str(value))
