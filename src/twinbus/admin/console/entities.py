"""One entity: its settings, its sessions; making, changing and removing entities and rules.

Everything goes through the administration that the Atom API uses, so the same things are
refused in the same words. Keys of authorization rules never leave.
"""

from __future__ import annotations

import base64
from dataclasses import asdict, fields, replace
from heapq import nsmallest
from typing import Any, TypeVar

from twinbus.admin.console.overview import description_of, row_of, state_counts
from twinbus.core import errors, names
from twinbus.core.descriptions import (
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.core.errors import BusError
from twinbus.engine.entities import Entity, Queue
from twinbus.engine.stream import Stream
from twinbus.engine.topics import Subscription, Topic
from twinbus.server.administration import NamespaceAdministration

SESSIONS_MAX = 200
_FIXED = ("name", "topic", "created_ms", "updated_ms", "authorization_rules")

Json = dict[str, Any]
D = TypeVar("D", QueueDescription, TopicDescription, SubscriptionDescription)


def details(entity: Entity) -> Json:
    """What there is to know about an entity, besides its messages."""
    settings = asdict(description_of(entity))
    rules = settings.pop("authorization_rules", [])
    shown: Json = {
        **row_of(entity),
        "settings": settings,
        "policies": [{"name": rule["name"], "rights": rule["rights"]} for rule in rules],
        "streams": {
            "dead-letter": state_counts(entity.streams.get(names.DEAD_LETTER_STREAM)),
            "transfer": state_counts(entity.streams.get(names.TRANSFER_STREAM)),
        },
        "receivers": entity.main.receivers,
        "senders": len(entity.senders),
        "accessed": entity.accessed_ms,
    }
    if isinstance(entity, Topic):
        shown["subscriptions"] = [s.path for s in entity.subscriptions.values()]
    if isinstance(entity, Subscription):
        shown["rules"] = [asdict(rule.description) for rule in entity.rules.values()]
    return shown


def list_sessions(stream: Stream, after: str) -> Json:
    """Sessions with messages, a state or a holder, by id, a page at a time."""
    table = stream.sessions
    if table is None:
        raise BusError(errors.NOT_ALLOWED, f"'{stream.path}' has no sessions.")
    ids = nsmallest(SESSIONS_MAX + 1, (key for key in table.sessions if key > after))
    page = [table.sessions[key] for key in ids[:SESSIONS_MAX]]
    return {
        "total": len(table.sessions),
        "more": len(ids) > SESSIONS_MAX,
        "sessions": [
            {
                "id": session.id,
                "messages": session.live,
                "first": session.first(),
                "locked_until": session.locked_until_ms if session.holder is not None else 0,
                "state_size": None if session.state is None else len(session.state),
                "state_set": session.state_set_ms,
            }
            for session in page
        ],
    }


def session_state(stream: Stream, session_id: str) -> Json:
    table = stream.sessions
    session = None if table is None else table.sessions.get(session_id)
    if session is None:
        raise BusError(errors.NOT_FOUND, f"'{stream.path}' has no session '{session_id}'.")
    state = session.state
    return {"state": None if state is None else base64.b64encode(state).decode()}


class Entities:
    """Makes, changes and removes; everything is durable on return."""

    def __init__(self, administration: NamespaceAdministration) -> None:
        self._admin = administration

    async def create(self, kind: str, path: str, settings: Json) -> None:
        if kind == "queue":
            await self._admin.create_queue(_with(QueueDescription(path), settings))
        elif kind == "topic":
            await self._admin.create_topic(_with(TopicDescription(path), settings))
        elif kind == "subscription":
            pair = names.split_subscription(path)
            if pair is None:
                raise BusError(
                    errors.ARGUMENT_ERROR, f"'{path}' should be <topic>/Subscriptions/<name>."
                )
            await self._admin.create_subscription(
                _with(SubscriptionDescription(*pair), settings), None
            )
        else:
            raise BusError(
                errors.ARGUMENT_ERROR, f"'{kind}' is none of queue, topic, subscription."
            )

    async def update(self, entity: Entity, settings: Json) -> None:
        if isinstance(entity, Queue):
            await self._admin.update_queue(_with(entity.description, settings))
        elif isinstance(entity, Topic):
            await self._admin.update_topic(_with(entity.description, settings))
        elif isinstance(entity, Subscription):
            await self._admin.update_subscription(_with(entity.description, settings))

    async def delete(self, entity: Entity) -> None:
        await self._admin.delete(entity.path)

    async def put_rule(self, subscription: Subscription, rule: RuleDescription) -> None:
        d = subscription.description
        old = subscription.rules.get(names.fold(rule.name))
        if old is None:
            await self._admin.create_rule(d.topic, d.name, rule)
            return
        # The console shows no parameters: those that a rule has are kept.
        kept = old.description
        await self._admin.update_rule(
            d.topic,
            d.name,
            replace(rule, parameters=kept.parameters, action_parameters=kept.action_parameters),
        )

    async def delete_rule(self, subscription: Subscription, name: str) -> None:
        d = subscription.description
        await self._admin.delete_rule(d.topic, d.name, name)


def _with(description: D, settings: Json) -> D:
    """A description with these settings, each of the type that it must have."""
    known = {f.name: getattr(description, f.name) for f in fields(description)}
    for name, value in settings.items():
        if name not in known or name in _FIXED:
            raise BusError(errors.ARGUMENT_ERROR, f"'{name}' is no setting that can be given here.")
        kind = str if known[name] is None else type(known[name])
        if type(value) is not kind and not (kind is str and value is None):
            raise BusError(
                errors.ARGUMENT_ERROR, f"'{name}' must be a {kind.__name__}, not {value!r}."
            )
    return replace(description, **settings)
