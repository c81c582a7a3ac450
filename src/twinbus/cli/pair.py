"""`twinbus pair status`: what waits in the backlog of a pair, and for whom.

It looks from outside, at the secondary's backlog queues and at the primary; the state inside
an application's own client is told by that client (`PairedServiceBusClient.status()`).
"""

from __future__ import annotations

from typing import Any

import typer

from twinbus.cli.commands import BacklogQueues, Json, PairCa, Primary, Secondary
from twinbus.cli.failures import NOT_FOUND, REFUSED, code_of, one_line_errors
from twinbus.cli.node import Node
from twinbus.cli.printer import Printer
from twinbus.cli.remote import Remote, need_sdk
from twinbus.core import names

app = typer.Typer(no_args_is_help=True, help="Paired namespaces, seen from outside.")

_UNKNOWN = "(no destination)"


@app.callback()
def pair() -> None:
    """Paired namespaces, seen from outside."""


@app.command()
def status(
    primary: Primary,
    secondary: Secondary,
    backlog_queues: BacklogQueues = 10,
    ca: PairCa = None,
    json_output: Json = False,
) -> None:
    """Tell what waits in the backlog, for which entity, and whether the primary answers."""
    with one_line_errors():
        need_sdk()
        from twinbus.pairing.names import backlog_queue_name

        printer = Printer(json_output)
        home = Remote(primary, ca=ca)
        queues = [backlog_queue_name(home.host, index) for index in range(backlog_queues)]
        backlog = Backlog()
        with (
            Remote(secondary, ca=ca).client() as client,
            printer.progress("Looking at the backlog", len(queues)) as advance,
        ):
            for queue in queues:
                backlog.look(client, queue)
                advance(1)
        error = _unreachable(home, sorted(backlog.entities))
        _print(printer, backlog, error)


class Backlog:
    """What the backlog queues hold, by queue and by destination."""

    def __init__(self) -> None:
        self.queues: list[dict[str, Any]] = []
        self.entities: dict[str, dict[str, Any]] = {}

    def look(self, client: Any, queue: str) -> None:
        found: dict[str, Any] = {"queue": queue, "exists": True, "waiting": 0, "dead_letters": 0}
        self.queues.append(found)
        try:
            for page in Node(client, queue).browse(bodies=False):
                found["waiting"] += len(page)
                for shown in page:
                    self._count(shown)
            dead = names.Address(queue, names.DEAD_LETTER_STREAM).path
            for page in Node(client, dead).browse(bodies=False):
                found["dead_letters"] += len(page)
        except Exception as error:
            if code_of(error) != NOT_FOUND:
                raise
            found["exists"] = False

    def _count(self, shown: dict[str, Any]) -> None:
        # Of one that cannot be read neither is known; some have pairs in place of a map.
        properties = shown.get("application_properties")
        named = properties.get("x-ms-path") if isinstance(properties, dict) else None
        path = str(named or _UNKNOWN)
        since = shown.get("enqueued_time_utc")
        entity = self.entities.setdefault(path, {"entity": path, "waiting": 0, "oldest": since})
        entity["waiting"] += 1
        if since is not None:
            entity["oldest"] = since if entity["oldest"] is None else min(entity["oldest"], since)


def _unreachable(primary: Remote, entities: list[str]) -> str | None:
    """Why the primary does not answer; None when it does, and be it with a refusal."""
    path = next((entity for entity in entities if entity != _UNKNOWN), "$")
    try:
        with primary.client() as client:
            Node(client, path).peek(count_max=1)
    except Exception as error:
        if code_of(error) in (NOT_FOUND, REFUSED):
            return None
        return " ".join(str(error).split())
    return None


def _print(printer: Printer, backlog: Backlog, error: str | None) -> None:
    entities = sorted(backlog.entities.values(), key=lambda entity: -entity["waiting"])
    waiting = sum(queue["waiting"] for queue in backlog.queues)
    if printer.json_output:
        found = {
            "primary": {"reachable": error is None, "error": error},
            "waiting": waiting,
            "backlog_queues": backlog.queues,
            "entities": entities,
        }
        printer.result(found, "")
        return
    home = "The primary answers." if error is None else f"The primary does not answer: {error}"
    printer.result({}, home, f"{waiting} waiting in the backlog.")
    if entities:
        printer.rows(entities, ("entity", "waiting", "oldest"))
    printer.rows(backlog.queues, ("queue", "exists", "waiting", "dead_letters"))
