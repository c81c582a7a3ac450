"""The filter tester: a message and rules go in, what each rule would do comes out.

It asks the very filters and actions that a topic asks. Nothing is sent and nothing changes.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from twinbus.admin.console.shown import message_json
from twinbus.admin.forms import CORRELATION
from twinbus.core import errors
from twinbus.core.descriptions import RuleDescription
from twinbus.core.errors import BusError
from twinbus.engine.entities import Entity
from twinbus.engine.message import Message
from twinbus.engine.rules import Rule
from twinbus.engine.topics import Subscription, Topic
from twinbus.engine.view import View
from twinbus.filters import EvaluationError

_CORRELATED = {field for _, field in CORRELATION}

Json = dict[str, Any]


def read_rule(given: Json) -> RuleDescription:
    """A rule as the console's form gives it; typed values are texts."""
    filter_kind = str(given.get("filter") or "sql")
    rule = RuleDescription(str(given.get("name") or "draft"), filter_kind)
    if filter_kind == "sql":
        rule.expression = str(given.get("expression") or "")
    if filter_kind == "correlation":
        rule.correlation = {k: str(v) for k, v in _mapping(given, "correlation").items()}
        unknown = rule.correlation.keys() - _CORRELATED
        if unknown:
            text = f"Unknown in a correlation filter: {', '.join(sorted(unknown))}."
            raise BusError(errors.ARGUMENT_ERROR, text)
        rule.properties = {k: _typed(v) for k, v in _mapping(given, "properties").items()}
    rule.action = str(given["action"]) if given.get("action") else None
    return rule


def try_rule(rule: Rule, message: Message) -> Json:
    """Whether one rule matches, what its action makes of the message, or why it fails."""
    description = rule.description
    shown: Json = {
        "name": description.name,
        "filter": description.filter,
        "expression": description.expression if description.filter == "sql" else None,
        "correlation": description.correlation,
        "properties": {key: value[1] for key, value in description.properties.items()},
        "action": description.action,
        "matches": False,
        "error": None,
        "result": None,
    }
    try:
        shown["matches"] = rule.matches(View(message, uuid4))
        if shown["matches"] and rule.action is not None:
            shown["result"] = message_json(rule.act(message, uuid4))
    except EvaluationError as failure:
        shown["error"] = f"{failure.kind}: {failure}"
    return shown


def try_entity(entity: Entity, message: Message) -> list[Json]:
    """Ask every rule of a subscription, or of all of a topic's subscriptions."""
    if isinstance(entity, Topic):
        subscriptions = list(entity.subscriptions.values())
    elif isinstance(entity, Subscription):
        subscriptions = [entity]
    else:
        raise BusError(errors.NOT_ALLOWED, f"'{entity.path}' is a queue: it has no rules.")
    return [
        {
            "subscription": subscription.path,
            "rules": [try_rule(rule, message) for rule in subscription.rules.values()],
        }
        for subscription in subscriptions
    ]


def _mapping(given: Json, name: str) -> Json:
    found = given.get(name) or {}
    if not isinstance(found, dict):
        raise BusError(errors.ARGUMENT_ERROR, f"'{name}' must be an object.")
    return found


def _typed(value: object) -> tuple[str, str]:
    """A value with its type; a pair of texts names both."""
    if isinstance(value, list) and len(value) == 2:
        return str(value[0]), str(value[1])
    if isinstance(value, bool):
        return "boolean", "true" if value else "false"
    if isinstance(value, int):
        return "long", str(value)
    if isinstance(value, float):
        return "double", repr(value)
    return "string", str(value)
