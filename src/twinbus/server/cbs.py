"""`$cbs`: clients show their tokens here (WIRE section 2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from twinbus.amqp.types import Int
from twinbus.core import errors, names
from twinbus.core.errors import BusError
from twinbus.engine.namespace import Namespace
from twinbus.server.requests import Request

if TYPE_CHECKING:
    from twinbus.server.door import CallLater, Hosts, Visitor


def answer(visitor: Visitor, hosts: Hosts, call_later: CallLater) -> Callable[[Request], None]:
    """Give the function that answers requests to this connection's `$cbs`."""

    def put_token(request: Request) -> None:
        hub = visitor.bridge.hub
        audience = str(request.headers.get("name") or "")
        try:
            _accept(visitor, hosts, request, audience)
        except BusError as error:
            text = hub.track(error, audience)
            request.reply({"status-code": Int(error.kind.status), "status-description": text}, None)
            return
        request.reply({"status-code": Int(202), "status-description": "Accepted"}, None)
        visitor.watch(call_later)

    return put_token


def _accept(visitor: Visitor, hosts: Hosts, request: Request, audience: str) -> None:
    operation = request.headers.get("operation")
    if operation != "put-token":
        raise BusError(
            errors.NOT_IMPLEMENTED, f"'{operation}' is unknown to $cbs: it takes put-token."
        )
    token = request.take_body()
    if not isinstance(token, str):
        raise BusError(errors.UNAUTHORIZED, "The token must be a text in the message's value.")
    if visitor.namespace is None or visitor.guard is None:
        raise BusError(errors.UNAUTHORIZED, "The connection has no namespace.")
    if visitor.guard.checks:
        _check_host(visitor.namespace, hosts, audience)
    claim = visitor.guard.check_token(token, audience, visitor.bridge.hub.now_ms // 1000)
    entity = names.parse_address(audience).entity
    if entity and visitor.namespace.find(entity) is None:
        raise errors.entity_not_found(audience)
    visitor.claims[claim.path] = claim


def _check_host(namespace: Namespace, hosts: Hosts, audience: str) -> None:
    """Namespaces of one broker share keys: a token that holds for one says nothing in another."""
    if hosts.resolve(names.authority(audience))[0] is not namespace:
        raise BusError(
            errors.UNAUTHORIZED,
            f"This connection is to namespace '{namespace.name}', and '{audience}' is in another.",
        )
