"""`twinbus reservations`: what consumers have set aside, and how it gets free again.

A stopped query leaves its messages reserved, so that it can go on where it was. One that will
not come back must be told apart from that by a person: there is no time after which they
return by themselves.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from twinbus.cli.commands import Entity, Yes, command
from twinbus.cli.failures import NOT_FOUND, CommandError
from twinbus.cli.node import Node
from twinbus.cli.printer import Printer, confirm
from twinbus.cli.remote import Remote

app = typer.Typer(no_args_is_help=True, help="What consumers have set aside.")

_COLUMNS = ("consumer", "settled_epoch", "epoch", "messages", "bytes", "attempts", "reserved_at")


@command(app, "list")
def list_all(
    remote: Remote, printer: Printer, entity: Entity,
    consumer: Annotated[str | None, typer.Argument(help="Only this one's.")] = None,
) -> None:  # fmt: skip
    """List who has reserved messages, and which epochs are outstanding."""
    with remote.client() as client:
        found = _known(Node(client, entity), consumer)
    if printer.json_output:
        printer.rows(found, ())
    else:
        printer.rows([row for known in found for row in _rows(known)], _COLUMNS)


@command(app, "release")
def release(
    remote: Remote, printer: Printer, entity: Entity,
    consumer: Annotated[str, typer.Argument(help="Whose reservations.")],
    yes: Yes = False,
) -> None:  # fmt: skip
    """Give back what a consumer has reserved. A query that still works on it will be refused."""
    with remote.client() as client:
        node = Node(client, entity)
        held = sum(epoch["messages"] for epoch in _known(node, consumer)[0]["epochs"])
        confirm(
            f"Give {held} messages of {entity} back that are reserved for {consumer}? If its query"
            " is running, it fails, and they are received a second time.",
            yes,
        )
        count = int(node.request("twinbus:release", {"consumer": consumer})["message-count"])
    printer.result({"released": count}, f"{count} released in {entity}.")


def _known(node: Node, consumer: str | None) -> list[dict[str, Any]]:
    answer = node.request("twinbus:reservations", {})["reservations"]
    found = [_plain(given) for given in answer]
    if consumer is None:
        return found
    chosen = [known for known in found if known["consumer"] == consumer]
    if not chosen:
        names = ", ".join(known["consumer"] for known in found) or "nobody"
        raise CommandError(
            f"'{consumer}' has reserved nothing there; {names} has. Check the name.", NOT_FOUND
        )
    return chosen


def _plain(given: dict[bytes, Any]) -> dict[str, Any]:
    """A consumer as programs read it; the SDK leaves texts as bytes."""
    return {
        "consumer": given[b"consumer"].decode(),
        "settled_epoch": given[b"settled-epoch"],
        "epochs": [
            {
                "epoch": epoch[b"epoch"],
                "messages": epoch[b"message-count"],
                "bytes": epoch[b"byte-count"],
                "attempts": epoch[b"attempts"],
                "reserved_at": _time(epoch[b"reserved-at"]),
                "ranges": epoch[b"ranges"],
            }
            for epoch in given[b"epochs"]
        ],
    }


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")


def _rows(known: dict[str, Any]) -> list[dict[str, Any]]:
    """One line for each epoch; one without for a consumer that has nothing outstanding."""
    shared = {"consumer": known["consumer"], "settled_epoch": known["settled_epoch"]}
    return [shared | epoch for epoch in known["epochs"]] or [shared]
