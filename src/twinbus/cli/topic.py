"""`twinbus topic`: make, see, change and remove topics."""

from typing import Annotated, Any

import typer

from twinbus.cli import settings as known
from twinbus.cli.commands import Yes, command, named
from twinbus.cli.printer import Printer, confirm
from twinbus.cli.remote import Remote

app = typer.Typer(no_args_is_help=True, help="Make, see, change and remove topics.")
Name = Annotated[str, typer.Argument(callback=named, help="The topic's name.")]

_COLUMNS = ("name", "subscription_count", "scheduled_message_count", "size_in_bytes", "status")


@command(app, "create", known.TOPIC_CREATE)
def create(remote: Remote, printer: Printer, name: Name, settings: dict[str, Any]) -> None:
    """Make a topic."""
    with remote.admin() as admin:
        made = admin.create_topic(name, **known.at_birth(settings))
    printer.result(known.shown(made), f"Topic {name} was made.")


@command(app, "show")
def show(remote: Remote, printer: Printer, name: Name) -> None:
    """Show a topic's settings and counts."""
    with remote.admin() as admin:
        topic = known.found(admin.get_topic, "topic", name)
        found = known.shown(topic, admin.get_topic_runtime_properties(name))
    printer.record(found)


@command(app, "list")
def list_all(remote: Remote, printer: Printer) -> None:
    """List all topics with their counts."""
    with remote.admin() as admin:
        runtime = {one.name: one for one in admin.list_topics_runtime_properties()}
        found = [known.shown(topic, runtime.get(topic.name)) for topic in admin.list_topics()]
    printer.rows(found, _COLUMNS)


@command(app, "update", known.TOPIC_UPDATE)
def update(remote: Remote, printer: Printer, name: Name, settings: dict[str, Any]) -> None:
    """Change a topic's settings; those not named stay as they are."""
    with remote.admin() as admin:
        topic = known.found(admin.get_topic, "topic", name)
        known.apply(topic, settings)
        admin.update_topic(topic)
        changed = admin.get_topic(name)
    printer.result(known.shown(changed), f"Topic {name} was changed.")


@command(app, "delete")
def delete(remote: Remote, printer: Printer, name: Name, yes: Yes = False) -> None:
    """Remove a topic, its subscriptions and all their messages."""
    confirm(f"Remove topic {name}, its subscriptions and all their messages?", yes)
    with remote.admin() as admin:
        # Administration removes whatever has that name.
        known.found(admin.get_topic, "topic", name)
        admin.delete_topic(name)
    printer.result({"deleted": name}, f"Topic {name} was removed.")
