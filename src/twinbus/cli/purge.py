"""`twinbus purge` and `twinbus undefer`: all messages of an entity that are in one state.

A broker does some at a time, so that others are served in between; the commands go on until
nothing is left of what was there. A run that was stopped is run again.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated

import typer

from twinbus.cli.commands import Entity, Yes, command
from twinbus.cli.failures import USAGE, CommandError
from twinbus.cli.node import Node
from twinbus.cli.printer import Printer, confirm
from twinbus.cli.remote import Remote

app = typer.Typer()


class Purged(StrEnum):
    """What can be thrown away; locked messages are their receivers'."""

    ACTIVE = "active"
    DEFERRED = "deferred"
    SCHEDULED = "scheduled"


State = Annotated[Purged, typer.Option(help="Those in this state.")]


@command(app, "purge")
def purge(
    remote: Remote, printer: Printer, entity: Entity, state: State = Purged.ACTIVE, yes: Yes = False
) -> None:
    """Throw away all messages of an entity that are in one state."""
    confirm(f"Throw away all {state.value} messages in {entity}?", yes)
    with remote.client() as client:
        node = Node(client, entity)
        is_twinbus = node.is_twinbus()
        if not is_twinbus and state is not Purged.ACTIVE:
            raise CommandError(f"only Twinbus can purge {state.value} messages", USAGE)
        throw_away(printer, entity, node.purge(state.value) if is_twinbus else node.delete())


@command(app, "undefer")
def undefer(remote: Remote, printer: Printer, entity: Entity) -> None:
    """Make all deferred messages of an entity active again, in their old places."""

    def tell(count: int) -> None:
        printer.result({"undeferred": count}, f"{count} in {entity} are active again.")

    with remote.client() as client:
        node = Node(client, entity)
        if not node.is_twinbus():
            raise CommandError("only Twinbus can make deferred messages active again", USAGE)
        with printer.counted(f"Waking {entity}", tell) as advance:
            for page in node.browse(state="deferred", bodies=False):
                advance(node.undefer([shown["sequence_number"] for shown in page]))


def throw_away(printer: Printer, path: str, steps: Iterator[int]) -> None:
    """Purge step by step to the end; tells how many went."""

    def tell(count: int) -> None:
        printer.result({"purged": count}, f"{count} purged from {path}.")

    with printer.counted(f"Purging {path}", tell) as advance:
        for count in steps:
            advance(count)
