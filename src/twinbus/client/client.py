"""A blocking client for a Service Bus namespace, this broker's or Azure's.

A connection string goes in; requests to `$management` nodes and senders come out. One
connection with one AMQP session carries all of it; a thread keeps it alive and its tokens
fresh while nobody calls. A lost connection is told and not mended: connecting again is the
caller's to decide.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from dataclasses import dataclass, field
from typing import Any, Final

from twinbus.amqp.types import UInt
from twinbus.client.connection import Connection
from twinbus.client.endpoint import parse_connection_string
from twinbus.client.errors import ClientError, Refused
from twinbus.client.requests import RequestNode
from twinbus.client.sender import WINDOW_BYTES, WINDOW_MESSAGES, Sender
from twinbus.client.tokens import Tokens
from twinbus.client.transport import Transport
from twinbus.client.wire import Wire
from twinbus.core import errors

TIMEOUT_S: Final = 60.0
#: Names a file of authorities to trust, as it does for the command line.
CA_VARIABLE: Final = "TWINBUS_CA"

_PREFIX: Final = "com.microsoft:"
_CONDITIONS: Final = {
    kind.status: kind.condition
    for kind in (errors.UNAUTHORIZED, errors.NOT_FOUND, errors.TIMEOUT, errors.SERVER_BUSY)
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a node answered to a request that it carried out; 204 means: nothing there."""

    status: int
    body: dict[str, Any] = field(default_factory=dict)
    description: str = ""


class Client:
    """Made by `connect`; may be used by several threads, one call at a time."""

    def __init__(self, wire: Wire, tokens: Tokens) -> None:
        self._wire = wire
        self._tokens = tokens
        self._nodes: dict[str, RequestNode] = {}
        self._closed = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="twinbus-client", daemon=True)
        self._keeper.start()

    @classmethod
    def connect(
        cls,
        connection_string: str,
        *,
        container_id: str | None = None,
        ca_file: str | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Client:
        """Connect; the container id is the name under which the broker counts this client."""
        endpoint = parse_connection_string(connection_string)
        trusted = ca_file or os.environ.get(CA_VARIABLE) or None
        transport = Transport(endpoint, trusted, timeout_s)
        name = container_id or f"twinbus-{uuid.uuid4().hex[:12]}"
        wire = Wire(transport, Connection(endpoint.host, name), timeout_s)
        try:
            wire.wait(lambda: wire.connection.opened, "open the connection")
        except BaseException:
            transport.close()
            raise
        return cls(wire, Tokens(endpoint))

    def request(self, entity: str, operation: str, body: dict[str, Any]) -> Answer:
        """Ask the entity's `$management` node; raise Refused for a status of 400 and up."""
        name = operation if operation.startswith(_PREFIX) else _PREFIX + operation
        headers = {
            "operation": name,
            _PREFIX + "server-timeout": UInt(int(self._wire.timeout_s * 1000)),
        }
        with self._wire.lock:
            self._authorize(entity)
            given, value = self._node(f"{entity}/$management").ask(headers, body)
        status = given.get("statusCode")
        text = str(given.get("statusDescription") or "")
        _check_status(status, given.get("errorCondition"), text)
        mapping = value if isinstance(value, dict) else {}
        return Answer(int(status or 0), {str(key): mapping[key] for key in mapping}, text)

    def sender(
        self,
        entity: str,
        *,
        window_messages: int = WINDOW_MESSAGES,
        window_bytes: int = WINDOW_BYTES,
    ) -> Sender:
        """Open a queue or topic for sending; so much may be under way unacknowledged."""
        with self._wire.lock:
            self._authorize(entity)
            return Sender(self._wire, entity, window_messages, window_bytes)

    def close(self) -> None:
        if self._closed.is_set():
            return
        self._closed.set()
        with self._wire.lock:
            self._wire.close()
        if threading.current_thread() is not self._keeper:
            self._keeper.join()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -----------------------------------------------------------------------------------

    def _node(self, address: str) -> RequestNode:
        node = self._nodes.get(address)
        if node is None or not node.is_usable:
            node = self._nodes[address] = RequestNode(self._wire, address)
        return node

    def _authorize(self, entity: str) -> None:
        """Show a token for the entity, unless one is there that lasts."""
        self._wire.check()
        audience = self._tokens.audience(entity)
        if self._tokens.is_due(audience, time.time()):
            self._show_token(audience)

    def _show_token(self, audience: str) -> None:
        now_s = time.time()
        headers = {
            "operation": "put-token",
            "type": "servicebus.windows.net:sastoken",
            "name": audience,
        }
        given, _ = self._node("$cbs").ask(headers, self._tokens.make(audience, now_s))
        text = str(given.get("status-description") or "")
        _check_status(given.get("status-code"), given.get("error-condition"), text)
        self._tokens.shown(audience, now_s)

    def _keep(self) -> None:
        """Keep the line and the tokens alive; a failure is told to the next caller."""
        while not self._closed.wait(self._wire.keep_alive_s / 2):
            with self._wire.lock:
                if self._closed.is_set() or self._wire.connection.failure is not None:
                    return
                try:
                    for audience in self._tokens.all_due(time.time()):
                        self._show_token(audience)
                    self._wire.exchange(0)
                except ClientError as error:
                    self._wire.connection.lost(f"the token could not be renewed: {error}")
                    return


def _check_status(status: object, condition: object, text: str) -> None:
    if not isinstance(status, int):
        raise Refused(errors.INTERNAL_ERROR.condition, "The broker's answer has no status.")
    if status >= 400:
        fallback = _CONDITIONS.get(status, errors.INTERNAL_ERROR.condition)
        raise Refused(str(condition) if condition else fallback, text or f"Status {status}.")
