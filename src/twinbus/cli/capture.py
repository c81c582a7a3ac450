"""`twinbus capture`: the journal as Parquet, how far it has come, and small files merged."""

import importlib.util
import logging
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from twinbus.cli.commands import Json
from twinbus.cli.failures import FAILURE, NOT_FOUND, USAGE, CommandError, one_line_errors
from twinbus.cli.printer import Printer
from twinbus.journal import JournalError

app = typer.Typer(no_args_is_help=True, help="The journal as Parquet files, for Spark and others.")

log = logging.getLogger(__name__)

NOT_INSTALLED = 'capture needs more than the broker does: pip install "twinbus[capture]"'
# How long the journal is left alone, unless there was so much in it that there is more.
_POLL_S = 0.25
_BEHIND_BYTES = 1 << 20
# A capturing process whose broker was killed ends by itself; its successor waits for that.
_PREDECESSOR_S = 30.0

Root = Annotated[Path, typer.Argument(metavar="ROOT", help="Where the captured files are.")]
AcceptGap = Annotated[
    bool, typer.Option("--accept-gap", help="Go on without records that are gone for good.")
]


@app.command()
def run(
    data_dir: Annotated[
        Path, typer.Argument(metavar="DATA_DIR", help="The broker's data directory.")
    ],
    root: Root,
    roll_seconds: Annotated[
        float, typer.Option(min=0.1, help="A file holds at most this much time.")
    ] = 60.0,
    keep_days: Annotated[
        int | None, typer.Option(min=1, max=36_500, help="Remove files of days before these.")
    ] = None,
    keep_gigabytes: Annotated[
        float | None, typer.Option(min=0, help="Remove the oldest files beyond this.")
    ] = None,
    accept_gap: AcceptGap = False,
    once: Annotated[
        bool, typer.Option("--once", help="Capture what there is now, and end.")
    ] = False,
    supervised: Annotated[bool, typer.Option("--supervised", hidden=True)] = False,
) -> None:
    """Capture a broker's journal until stopped; the broker may run, or not.

    `twinbus serve --capture ROOT` does this by itself.
    """
    with _logged_errors() if supervised else _clear_errors():
        from twinbus.capture.capturer import Capturer, Settings
        from twinbus.capture.files import CaptureFile, held, node_of
        from twinbus.capture.supervisor import progress_line

        if not (data_dir / "journal").is_dir():
            text = f"{data_dir} is no data directory: it has no journal in it"
            raise CommandError(text, FAILURE if data_dir.exists() else NOT_FOUND)
        _check_root(root)
        settings = Settings(
            data_dir / "journal", root, node_of(data_dir), roll_seconds=roll_seconds,
            keep_days=keep_days, keep_gigabytes=keep_gigabytes, accept_gap=accept_gap,
        )  # fmt: skip

        def say(file: CaptureFile) -> None:
            if supervised:
                print(progress_line(file.last_lsn), flush=True)
            else:
                typer.echo(f"{file.path}", err=True)

        with held(root, _PREDECESSOR_S if supervised else 0.0):
            capturer = Capturer(settings, on_written=say)
            if supervised:
                print(progress_line(capturer.captured_lsn), flush=True)
            try:
                if not once:
                    _follow(capturer.step, _leash() if supervised else _signals())
                capturer.drain()
            finally:
                capturer.close()


@app.command()
def status(root: Root, json_output: Json = False) -> None:
    """Say how far a capture has come, what is missing, and how far the journal is ahead."""
    with _clear_errors():
        from twinbus.capture.status import status as look

        _need_root(root)
        Printer(json_output).record(look(root))


@app.command()
def compact(
    root: Root,
    to: Annotated[Path, typer.Argument(metavar="TO", help="Where the merged files go.")],
    accept_gap: AcceptGap = False,
    json_output: Json = False,
) -> None:
    """Merge small files into large ones, under another root; run it again for what is new."""
    with _clear_errors():
        from twinbus.capture.compacting import compact as merge

        _need_root(root)
        _check_root(to)
        if root.resolve() == to.resolve():
            raise CommandError("the merged files need a root of their own: name another TO", USAGE)
        printer = Printer(json_output)
        with printer.progress("files written") as advance:
            written = merge(root, to, accept_gap=accept_gap, on_written=lambda file: advance(1))
        last_lsn = max((file.last_lsn for file in written), default=None)
        printer.result(
            {"files": len(written), "last_lsn": last_lsn},
            f"Wrote {len(written)} files to {to}." if written else f"{to} has everything already.",
        )


def _check_root(root: Path) -> None:
    if root.exists() and not root.is_dir():
        raise CommandError(f"{root} is no directory: files cannot be written into it", USAGE)


def _need_root(root: Path) -> None:
    if not root.exists():
        raise CommandError(f"there is no directory {root}: nothing was captured to it", NOT_FOUND)


def is_installed() -> bool:
    """Whether the libraries that capture needs are there."""
    return all(importlib.util.find_spec(name) for name in ("numpy", "pyarrow"))


@contextmanager
def _clear_errors() -> Iterator[None]:
    with one_line_errors():
        if not is_installed():
            raise CommandError(NOT_INSTALLED)
        expected = _expected_errors()
        try:
            yield
        except expected as error:
            raise CommandError(str(error), FAILURE) from error


def _expected_errors() -> tuple[type[Exception], ...]:
    from twinbus.capture.files import CaptureError
    from twinbus.capture.rows import UnknownRecordError

    return CaptureError, JournalError, UnknownRecordError


@contextmanager
def _logged_errors() -> Iterator[None]:
    """Be the broker's child: log as it does, and leave it the processor when both want it.

    A signal to the whole group is the broker's to obey: we end when it has, and all is captured.
    """
    from twinbus.cli.serve import log_json_lines

    log_json_lines()
    os.nice(5)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    expected: tuple[type[Exception], ...] = (*_expected_errors(), CommandError, OSError)
    try:
        yield
    except expected as error:
        log.error("capture cannot go on: %s", error)
        raise typer.Exit(FAILURE) from error
    except Exception as error:
        log.exception("capture failed")
        raise typer.Exit(FAILURE) from error


def _follow(step: Callable[[], int], is_over: Callable[[float], bool]) -> None:
    """Capture until `is_over`, which waits for up to the seconds it is given."""
    while not is_over(0.0 if step() >= _BEHIND_BYTES else _POLL_S):
        pass


def _leash() -> Callable[[float], bool]:
    """Over when whoever started us closes our standard input, or has ended."""

    def is_over(wait_s: float) -> bool:
        readable, _, _ = select.select([sys.stdin], [], [], wait_s)
        return bool(readable) and not os.read(sys.stdin.fileno(), 1024)

    return is_over


def _signals() -> Callable[[float], bool]:
    """Over at SIGTERM or Ctrl-C."""
    stopping = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    return stopping.wait
