"""`twinbus queue`: make, see, change and remove queues."""

from typing import Annotated, Any

import typer

from twinbus.cli import settings as known
from twinbus.cli.commands import Yes, command, named
from twinbus.cli.printer import Printer, confirm
from twinbus.cli.remote import Remote

app = typer.Typer(no_args_is_help=True, help="Make, see, change and remove queues.")
Name = Annotated[str, typer.Argument(callback=named, help="The queue's name.")]

_COLUMNS = (
    "name",
    "active_message_count",
    "dead_letter_message_count",
    "scheduled_message_count",
    "size_in_bytes",
    "status",
)


@command(app, "create", known.QUEUE_CREATE)
def create(remote: Remote, printer: Printer, name: Name, settings: dict[str, Any]) -> None:
    """Make a queue."""
    with remote.admin() as admin:
        made = admin.create_queue(name, **known.at_birth(settings))
    printer.result(known.shown(made), f"Queue {name} was made.")


@command(app, "show")
def show(remote: Remote, printer: Printer, name: Name) -> None:
    """Show a queue's settings and counts."""
    with remote.admin() as admin:
        queue = known.found(admin.get_queue, "queue", name)
        found = known.shown(queue, admin.get_queue_runtime_properties(name))
    printer.record(found)


@command(app, "list")
def list_all(remote: Remote, printer: Printer) -> None:
    """List all queues with their counts."""
    with remote.admin() as admin:
        runtime = {one.name: one for one in admin.list_queues_runtime_properties()}
        found = [known.shown(queue, runtime.get(queue.name)) for queue in admin.list_queues()]
    printer.rows(found, _COLUMNS)


@command(app, "update", known.QUEUE_UPDATE)
def update(remote: Remote, printer: Printer, name: Name, settings: dict[str, Any]) -> None:
    """Change a queue's settings; those not named stay as they are."""
    with remote.admin() as admin:
        queue = known.found(admin.get_queue, "queue", name)
        known.apply(queue, settings)
        admin.update_queue(queue)
        changed = admin.get_queue(name)
    printer.result(known.shown(changed), f"Queue {name} was changed.")


@command(app, "delete")
def delete(remote: Remote, printer: Printer, name: Name, yes: Yes = False) -> None:
    """Remove a queue and all its messages."""
    confirm(f"Remove queue {name} and all its messages?", yes)
    with remote.admin() as admin:
        # Administration removes whatever has that name.
        known.found(admin.get_queue, "queue", name)
        admin.delete_queue(name)
    printer.result({"deleted": name}, f"Queue {name} was removed.")
