"""`$cbs`: clients show their tokens here (WIRE section 2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from twinbus.amqp.types import Int
from twinbus.core import errors, names
from twinbus.core.errors import BusError
from twinbus.server.authorization import Claim
from twinbus.server.requests import Request

if TYPE_CHECKING:
    from twinbus.server.door import Visitor


def answer(
    visitor: Visitor, call_later: Callable[[int, Callable[[], None]], None]
) -> Callable[[Request], None]:
    """Give the function that answers requests to this connection's `$cbs`."""

    def put_token(request: Request) -> None:
        hub = visitor.bridge.hub
        audience = str(request.headers.get("name") or "")
        try:
            claim = _accept(visitor, request, audience, hub.now_ms // 1000)
        except BusError as error:
            text = hub.track(error, audience)
            request.reply({"status-code": Int(error.kind.status), "status-description": text}, None)
            return
        request.reply({"status-code": Int(202), "status-description": "Accepted"}, None)
        if claim.expires_s:
            watch(claim)

    def watch(claim: Claim) -> None:
        left_ms = claim.expires_s * 1000 - visitor.bridge.hub.now_ms
        if left_ms > 0:
            # Looked at again then: the clock may be set back meanwhile.
            call_later(left_ms, lambda: watch(claim))
        else:
            visitor.recheck(visitor.bridge.hub.now_ms // 1000)

    return put_token


def _accept(visitor: Visitor, request: Request, audience: str, now_s: int) -> Claim:
    operation = request.headers.get("operation")
    if operation != "put-token":
        raise BusError(
            errors.NOT_IMPLEMENTED, f"'{operation}' is unknown to $cbs: it takes put-token."
        )
    if not isinstance(request.body, str):
        raise BusError(errors.UNAUTHORIZED, "The token must be a text in the message's value.")
    if visitor.namespace is None or visitor.guard is None:
        raise BusError(errors.UNAUTHORIZED, "The connection has no namespace.")
    claim = visitor.guard.check_token(request.body, audience, now_s)
    entity = names.parse_address(audience).entity
    if entity and visitor.namespace.find(entity) is None:
        raise errors.entity_not_found(audience)
    visitor.claims[claim.path] = claim
    return claim
