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
from twinbus.cli.lines import can_be_read_twice, encoded, read_lines
from twinbus.cli.node import Node
from twinbus.cli.outbox import Outbox
from twinbus.cli.printer import Printer
from twinbus.cli.remote import BRISK, Remote
from twinbus.forms.message_form import Encoded

app = typer.Typer()

Target = Annotated[Path, typer.Argument(help="Where to write; - is standard output.")]
Source = Annotated[Path, typer.Argument(help="What to read; - is standard input.")]


@command(app, "export")
def export(remote: Remote, printer: Printer, entity: Entity, file: Target) -> None:
    """Write all messages of an entity to a file of JSON lines; they stay where they are.

    Those that cannot be read are left out and named, and it exits with 1.
    """
    count = 0
    left_out: list[str] = []
    with (
        remote.client() as client,
        _whole_file(file) as out,
        printer.progress(f"Exporting {entity}") as advance,
    ):
        for page in Node(client, entity).browse():
            for shown in page:
                if "unreadable" in shown:
                    left_out.append(str(shown["sequence_number"]))
                    continue
                out.write(json.dumps(shown, ensure_ascii=False) + "\n")
                count += 1
            advance(len(page))
    if str(file) != "-":
        found = {"exported": count, "file": str(file)}
        printer.result(found, f"{count} messages of {entity} are in {file}.")
    if left_out:
        raise CommandError(f"left out, for they cannot be read: {', '.join(left_out)}")


@command(app, "import")
def import_(remote: Remote, printer: Printer, entity: Entity, file: Source) -> None:
    """Send all messages of a file that `export` wrote; of one that cannot be read, none."""
    if can_be_read_twice(file):
        # What was sent would be sent again when the file is mended and imported again.
        for _ in _encoded(file):
            pass

    def tell(count: int) -> None:
        printer.result({"imported": count}, f"{count} messages imported into {entity}.")

    with (
        remote.client() as client,
        client.get_queue_sender(entity, **BRISK) as sender,
        printer.counted(f"Importing into {entity}", tell) as advance,
    ):
        Outbox(sender).send_all(_encoded(file), advance)


def _encoded(file: Path) -> Iterator[Encoded]:
    return (encoded(message, place) for place, message in read_lines(file))


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
    # What it holds was for its receivers only: nobody else's file will do, nor a link to one.
    part.unlink(missing_ok=True)
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            yield file
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
