"""`twinbus rule`: which messages a subscription gets, and what is changed in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from twinbus.amqp.types import Int, Timestamp
from twinbus.cli.commands import Yes, command, named, named_within
from twinbus.cli.failures import USAGE, CommandError
from twinbus.cli.printer import Printer, confirm
from twinbus.cli.properties import property_value
from twinbus.cli.remote import Remote
from twinbus.cli.settings import plain
from twinbus.core.units import datetime_from_ms

if TYPE_CHECKING:
    from azure.servicebus.management import RuleProperties

app = typer.Typer(no_args_is_help=True, help="Which messages a subscription gets.")
Topic = Annotated[str, typer.Argument(callback=named, help="The topic's name.")]
Subscription = Annotated[
    str, typer.Argument(callback=named_within, help="The subscription's name.")
]
Name = Annotated[str, typer.Argument(callback=named_within, help="The rule's name.")]
Sql = Annotated[
    str | None, typer.Option("--sql", help='Messages for which this holds, e.g. "amount > 10".')
]
Match = Annotated[
    list[str] | None,
    typer.Option(
        "--match",
        metavar="NAME=VALUE",
        help="Messages whose system property has this value: subject, correlation_id, message_id,"
        " session_id, to, reply_to, reply_to_session_id, content_type. Again for more.",
    ),
]
Property = Annotated[
    list[str] | None,
    typer.Option(
        "--property",
        metavar="NAME=VALUE",
        help="Messages whose own property has this value; NAME:int=5 gives a type.",
    ),
]
Action = Annotated[
    str | None, typer.Option("--action", help='Change them so, e.g. "SET priority = 1".')
]

_MATCHED = {
    "subject": "label",
    "correlation_id": "correlation_id",
    "message_id": "message_id",
    "session_id": "session_id",
    "to": "to",
    "reply_to": "reply_to",
    "reply_to_session_id": "reply_to_session_id",
    "content_type": "content_type",
}


@command(app, "create")
def create(
    remote: Remote, printer: Printer, topic: Topic, subscription: Subscription, name: Name,
    sql: Sql = None, match: Match = None, own: Property = None, action: Action = None,
) -> None:  # fmt: skip
    """Add a rule: --sql, or --match and --property, or neither for every message."""
    with remote.admin() as admin:
        made = admin.create_rule(
            topic, subscription, name, filter=_filter(sql, match, own), action=_action(action)
        )
    printer.result(_shown(made), f"Rule {name} was added.")


@command(app, "show")
def show(
    remote: Remote, printer: Printer, topic: Topic, subscription: Subscription, name: Name
) -> None:
    """Show a rule."""
    with remote.admin() as admin:
        printer.record(_shown(admin.get_rule(topic, subscription, name)))


@command(app, "list")
def list_all(remote: Remote, printer: Printer, topic: Topic, subscription: Subscription) -> None:
    """List a subscription's rules."""
    with remote.admin() as admin:
        found = [_shown(rule) for rule in admin.list_rules(topic, subscription)]
    printer.rows(found, ("name", "filter", "action"))


@command(app, "update")
def update(
    remote: Remote, printer: Printer, topic: Topic, subscription: Subscription, name: Name,
    sql: Sql = None, match: Match = None, own: Property = None, action: Action = None,
) -> None:  # fmt: skip
    """Change a rule's filter or action; what is not named stays as it is."""
    if sql is None and not match and not own and action is None:
        raise CommandError("nothing to change: give a filter or an --action", USAGE)
    with remote.admin() as admin:
        rule = admin.get_rule(topic, subscription, name)
        if sql is not None or match or own:
            rule.filter = _filter(sql, match, own)
        if action is not None:
            rule.action = _action(action)
        admin.update_rule(topic, subscription, rule)
        changed = admin.get_rule(topic, subscription, name)
    printer.result(_shown(changed), f"Rule {name} was changed.")


@command(app, "delete")
def delete(
    remote: Remote, printer: Printer, topic: Topic, subscription: Subscription, name: Name,
    yes: Yes = False,
) -> None:  # fmt: skip
    """Remove a rule."""
    confirm(f"Remove rule {name}?", yes)
    with remote.admin() as admin:
        admin.delete_rule(topic, subscription, name)
    printer.result({"deleted": name}, f"Rule {name} was removed.")


def _filter(sql: str | None, match: list[str] | None, own: list[str] | None) -> Any:
    from azure.servicebus.management import CorrelationRuleFilter, SqlRuleFilter, TrueRuleFilter

    if sql is not None:
        if match or own:
            raise CommandError("--sql goes without --match and --property", USAGE)
        return SqlRuleFilter(sql)
    if not match and not own:
        return TrueRuleFilter()
    wanted: dict[str, Any] = {}
    for text in match or []:
        name, separator, value = text.partition("=")
        if not separator or name not in _MATCHED:
            raise CommandError(f"--match {text}: use NAME=VALUE with {', '.join(_MATCHED)}", USAGE)
        wanted[_MATCHED[name]] = value
    properties = {name: _sdk_value(value) for name, value in map(property_value, own or [])}
    return CorrelationRuleFilter(properties=properties, **wanted)


def _sdk_value(value: object) -> Any:
    """A value as the administration API takes it."""
    if isinstance(value, Timestamp):
        return datetime_from_ms(value)
    if isinstance(value, UUID):
        return str(value)
    return int(value) if isinstance(value, Int) else value


def _action(text: str | None) -> Any:
    from azure.servicebus.management import SqlRuleAction

    return SqlRuleAction(text) if text else None


def _shown(rule: RuleProperties) -> dict[str, Any]:
    kind = type(rule.filter).__name__.removesuffix("RuleFilter").casefold()
    described = {
        str(name): plain(value) for name, value in vars(rule.filter or {}).items() if value
    }
    action = getattr(rule.action, "sql_expression", None)
    return {"name": rule.name, "filter": {"kind": kind, **described}, "action": action}
