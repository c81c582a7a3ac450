"""`twinbus export` and `twinbus import`: an entity's messages as JSON lines, without loss.

Export only looks: the messages stay. Import sends: every message gets a new sequence number,
and its time to live begins anew. Deferred and locked messages come back as active ones.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TextIO

import typer

from twinbus.cli.commands import Entity, command
from twinbus.cli.failures import NOT_FOUND, USAGE, CommandError
from twinbus.cli.node import Node
from twinbus.cli.outbox import Outbox
from twinbus.cli.printer import Printer
from twinbus.cli.remote import BRISK, Remote
from twinbus.cli.send import read_lines
from twinbus.forms.message_form import Encoded, from_json

app = typer.Typer()

Target = Annotated[Path, typer.Argument(help="Where to write; - is standard output.")]
Source = Annotated[Path, typer.Argument(help="What to read; - is standard input.")]


@command(app, "export")
def export(remote: Remote, printer: Printer, entity: Entity, file: Target) -> None:
    """Write all messages of an entity to a file of JSON lines; they stay where they are."""
    count = 0
    with (
        remote.client() as client,
        _whole_file(file) as out,
        printer.progress(f"Exporting {entity}") as advance,
    ):
        for page in Node(client, entity).browse():
            for shown in page:
                out.write(json.dumps(shown, ensure_ascii=False) + "\n")
            count += len(page)
            advance(len(page))
    if str(file) != "-":
        found = {"exported": count, "file": str(file)}
        printer.result(found, f"{count} messages of {entity} are in {file}.")


@command(app, "import")
def import_(remote: Remote, printer: Printer, entity: Entity, file: Source) -> None:
    """Send all messages of a file that `export` wrote; of one that cannot be read, none."""
    if str(file) != "-":
        # What was sent would be sent again when the file is mended and imported again.
        for _ in _encoded(file):
            pass
    with remote.client() as client, client.get_queue_sender(entity, **BRISK) as sender:
        outbox = Outbox(sender)
        try:
            with printer.progress(f"Importing into {entity}") as advance:
                for encoded in _encoded(file):
                    advance(outbox.put(encoded))
                advance(outbox.flush())
        except BaseException:
            if outbox.sent:
                _tell(printer, entity, outbox.sent)
            raise
    _tell(printer, entity, outbox.sent)


def _encoded(file: Path) -> Iterator[Encoded]:
    for number, message in enumerate(read_lines(file), 1):
        try:
            yield from_json(message)
        except (ValueError, RecursionError) as error:
            raise CommandError(f"{file}, message {number}: {error}") from error


def _tell(printer: Printer, entity: str, count: int) -> None:
    printer.result({"imported": count}, f"{count} messages imported into {entity}.")


@contextmanager
def _whole_file(path: Path) -> Iterator[TextIO]:
    """A file that appears under its name only when all of it is there."""
    if str(path) == "-":
        yield sys.stdout
        return
    # Told of the file that was named, not of the one beside it.
    if path.is_dir():
        raise CommandError(f"{path} is a directory: name a file in it", USAGE)
    if not path.parent.is_dir():
        raise CommandError(f"there is no directory {path.parent}: make it first", NOT_FOUND)
    part = path.with_name(path.name + ".part")
    try:
        # What it holds was for its receivers only.
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            yield file
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
