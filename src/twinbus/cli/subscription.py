"""`twinbus subscription`: make, see, change and remove subscriptions."""

from typing import Annotated, Any

import typer

from twinbus.cli import settings as known
from twinbus.cli.commands import Yes, command, named, named_within
from twinbus.cli.printer import Printer, confirm
from twinbus.cli.remote import Remote
from twinbus.core.names import subscription_path

app = typer.Typer(no_args_is_help=True, help="Make, see, change and remove subscriptions.")
Topic = Annotated[str, typer.Argument(callback=named, help="The topic's name.")]
Name = Annotated[str, typer.Argument(callback=named_within, help="The subscription's name.")]

_COLUMNS = ("name", "active_message_count", "dead_letter_message_count", "status")


@command(app, "create", known.SUBSCRIPTION_CREATE)
def create(
    remote: Remote, printer: Printer, topic: Topic, name: Name, settings: dict[str, Any]
) -> None:
    """Make a subscription; it gets every message until its rules say otherwise."""
    with remote.admin() as admin:
        made = admin.create_subscription(topic, name, **known.at_birth(settings))
    printer.result(_shown(topic, made), f"Subscription {name} of {topic} was made.")


@command(app, "show")
def show(remote: Remote, printer: Printer, topic: Topic, name: Name) -> None:
    """Show a subscription's settings and counts."""
    with remote.admin() as admin:
        runtime = admin.get_subscription_runtime_properties(topic, name)
        found = _shown(topic, admin.get_subscription(topic, name), runtime)
    printer.record(found)


@command(app, "list")
def list_all(remote: Remote, printer: Printer, topic: Topic) -> None:
    """List a topic's subscriptions with their counts."""
    with remote.admin() as admin:
        runtime = {one.name: one for one in admin.list_subscriptions_runtime_properties(topic)}
        found = [
            _shown(topic, one, runtime.get(one.name)) for one in admin.list_subscriptions(topic)
        ]
    printer.rows(found, _COLUMNS)


@command(app, "update", known.SUBSCRIPTION_UPDATE)
def update(
    remote: Remote, printer: Printer, topic: Topic, name: Name, settings: dict[str, Any]
) -> None:
    """Change a subscription's settings; those not named stay as they are."""
    with remote.admin() as admin:
        subscription = admin.get_subscription(topic, name)
        known.apply(subscription, settings)
        admin.update_subscription(topic, subscription)
        changed = admin.get_subscription(topic, name)
    printer.result(_shown(topic, changed), f"Subscription {name} of {topic} was changed.")


@command(app, "delete")
def delete(remote: Remote, printer: Printer, topic: Topic, name: Name, yes: Yes = False) -> None:
    """Remove a subscription and all its messages."""
    confirm(f"Remove subscription {name} of {topic} and all its messages?", yes)
    with remote.admin() as admin:
        admin.delete_subscription(topic, name)
    printer.result(
        {"deleted": subscription_path(topic, name)}, f"Subscription {name} of {topic} was removed."
    )


def _shown(topic: str, subscription: Any, runtime: Any = None) -> dict[str, Any]:
    return {"topic": topic, **known.shown(subscription, runtime)}
