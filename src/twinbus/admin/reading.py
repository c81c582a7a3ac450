"""Requests' XML becomes descriptions. Nothing here knows what exists or is allowed.

A body and, for an update, the description as it stands go in; a description comes out, or
BusError (status 400) says which element cannot be read.
"""

from dataclasses import replace
from typing import Any, TypeVar
from xml.etree.ElementTree import Element

from twinbus.admin import forms
from twinbus.admin.forms import Setting, text_of
from twinbus.admin.markup import ATOM, SERVICE_BUS, child, children, parse, type_of
from twinbus.core.descriptions import (
    DEFAULT_RULE,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.core.errors import ARGUMENT_ERROR, BusError

Entity = TypeVar("Entity", QueueDescription, TopicDescription, SubscriptionDescription)

_FIXED_EXPRESSIONS = {"TrueFilter": ("true", "1=1"), "FalseFilter": ("false", "1=0")}


def read_entry(body: bytes) -> tuple[str, Element]:
    """Give the name (`QueueDescription`, …) and the element that an entry is about."""
    entry = parse(body)
    content = entry.find(f"{{{ATOM}}}content")
    if entry.tag != f"{{{ATOM}}}entry" or content is None or len(content) != 1:
        raise _bad("The body must be an Atom entry whose content is one description.")
    namespace, _, name = content[0].tag.rpartition("}")
    if namespace != "{" + SERVICE_BUS:
        raise _bad(f"The content must be in the namespace {SERVICE_BUS}.")
    return name, content[0]


def read_queue(found: Element, base: QueueDescription) -> QueueDescription:
    """Read a queue's settings; the base is a new queue, or the one that is updated."""
    return _read_settings(found, base, QueueDescription(base.name), forms.QUEUE)


def read_topic(found: Element, base: TopicDescription) -> TopicDescription:
    return _read_settings(found, base, TopicDescription(base.name), forms.TOPIC)


def read_subscription(found: Element, base: SubscriptionDescription) -> SubscriptionDescription:
    default = SubscriptionDescription(base.topic, base.name)
    return _read_settings(found, base, default, forms.SUBSCRIPTION)


def read_default_rule(found: Element) -> RuleDescription | None:
    """Give the rule that a new subscription shall have instead of `$Default`, if any."""
    rule = child(found, "DefaultRuleDescription")
    if rule is None:
        return None
    name = child(rule, "Name")
    return read_rule(rule, DEFAULT_RULE if name is None else text_of(name).strip())


def read_rule(found: Element, name: str) -> RuleDescription:
    rule = RuleDescription(name)
    filter_element = child(found, "Filter")
    if filter_element is not None:
        _read_filter(filter_element, rule)
    action = child(found, "Action")
    if action is not None and type_of(action) == "SqlRuleAction":
        rule.action = _expression(action)
        rule.action_parameters = _typed_values(action, "Parameters")
    elif action is not None and type_of(action) not in ("EmptyRuleAction", ""):
        raise _bad(f"'{type_of(action)}' is not a kind of action; use SqlRuleAction.")
    return rule


def _read_filter(found: Element, rule: RuleDescription) -> None:
    kind = type_of(found)
    if kind in _FIXED_EXPRESSIONS:
        rule.filter, rule.expression = _FIXED_EXPRESSIONS[kind]
    elif kind == "SqlFilter":
        rule.filter = "sql"
        rule.expression = _expression(found)
        rule.parameters = _typed_values(found, "Parameters")
    elif kind == "CorrelationFilter":
        rule.filter = "correlation"
        rule.expression = ""
        for element_name, field in forms.CORRELATION:
            value = child(found, element_name)
            if value is not None:
                rule.correlation[field] = text_of(value)
        rule.properties = _typed_values(found, "Properties")
    else:
        raise _bad(
            f"'{kind}' is not a kind of filter; use TrueFilter, FalseFilter, SqlFilter or "
            "CorrelationFilter."
        )


def _expression(found: Element) -> str:
    expression = child(found, "SqlExpression")
    if expression is None:
        raise _bad("A SQL filter or action needs an SqlExpression.")
    return text_of(expression)


def _typed_values(found: Element, name: str) -> dict[str, tuple[str, str]]:
    values: dict[str, tuple[str, str]] = {}
    parent = child(found, name)
    for pair in [] if parent is None else children(parent, "KeyValueOfstringanyType"):
        key, value = child(pair, "Key"), child(pair, "Value")
        if key is None or value is None:
            raise _bad(f"Each of the {name} needs a Key and a Value.")
        kind = type_of(value)
        if kind not in forms.VALUE_TYPES:
            raise _bad(
                f"The value of '{text_of(key)}' has type '{kind}'; "
                f"use one of {', '.join(forms.VALUE_TYPES)}."
            )
        values[text_of(key)] = (kind, text_of(value))
    return values


def _read_settings(
    found: Element, base: Entity, default: Entity, table: tuple[Setting | str, ...]
) -> Entity:
    """What the element does not name gets its default, in an update too, as at Azure."""
    changes: dict[str, Any] = {}
    for setting in table:
        if isinstance(setting, str):
            continue
        given = child(found, setting.element)
        if given is not None:
            try:
                changes[setting.field] = setting.form.read(given)
            except ValueError as error:
                raise _bad(f"{setting.element} cannot be read: {error}.") from error
        elif not setting.is_fixed:
            changes[setting.field] = getattr(default, setting.field)
    return replace(base, **changes)


def _bad(text: str) -> BusError:
    return BusError(ARGUMENT_ERROR, text)
