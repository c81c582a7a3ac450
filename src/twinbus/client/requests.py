"""Requests and answers over a pair of links to one node, `$cbs` or a `$management`.

Headers and a body go in, those of the answer come out. What they mean is the caller's.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from twinbus.amqp.errors import DecodeError
from twinbus.amqp.exchange import decode_exchange, encode_exchange
from twinbus.amqp.properties import Properties
from twinbus.client.connection import refusal_of
from twinbus.client.errors import ConnectionLost
from twinbus.client.wire import Wire


class RequestNode:
    def __init__(self, wire: Wire, address: str) -> None:
        self._wire = wire
        self._address = address
        self._out = wire.connection.attach_sender(address)
        self._in = wire.connection.attach_receiver(address)
        wire.wait(self._attached, f"open {address}", self._out, self._in)

    def _attached(self) -> bool:
        return self._out.attached and self._in.attached and self._out.credit > 0

    @property
    def is_usable(self) -> bool:
        return self._out.failure is None and self._in.failure is None

    def ask(self, headers: Mapping[str, object], body: object) -> tuple[dict[str, Any], object]:
        """Send one request and wait for its answer."""
        properties = Properties()
        properties.message_id = uuid.uuid4().hex
        properties.reply_to = self._in.name
        self._wire.connection.send(self._out, encode_exchange(properties, headers, body), 0)
        while True:
            self._wire.wait(self._answered, f"answer {self._address}", self._out, self._in)
            answer = self._in.messages.popleft()
            try:
                told, answer_headers, answer_body = decode_exchange(answer)
            except DecodeError as error:
                raise ConnectionLost(
                    f"{self._address} gave an unreadable answer: {error}"
                ) from None
            if told.correlation_id == properties.message_id:
                return answer_headers, answer_body

    def _answered(self) -> bool:
        while self._out.outcomes:
            refusal = refusal_of(self._out.outcomes.popleft()[1])
            if refusal is not None:
                raise refusal
        return bool(self._in.messages)
