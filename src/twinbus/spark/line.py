"""A line to one entity that survives the broker: requests that may be asked twice.

Enters: a connection string, an entity's path, requests. Leaves: answers. Every operation that
the source asks for gives the same result when it is asked again, so a lost connection is no
more than a pause. Must not be used for anything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twinbus.client import Answer, Client, ClientError, Refused
from twinbus.core import errors
from twinbus.spark.patience import PATIENCE_S, Patience

# What a Service Bus that is not this broker says to an operation of ours.
_UNKNOWN = (errors.NOT_IMPLEMENTED.condition, errors.ARGUMENT_ERROR.condition)


class UnknownOperationError(Exception):
    """The other end does not know the operation: it is not this broker."""


class Line:
    def __init__(self, connection_string: str, entity: str, name: str) -> None:
        self.entity = entity
        self._connection_string = connection_string
        self._name = name
        self._client: Client | None = None

    def ask(self, operation: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Give the answer's body, empty for 'no content'; connects, again if need be."""
        return self._answer(operation, body).body

    def ask_own(self, operation: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The same for an operation that only this broker has."""
        try:
            return self.ask(operation, body)
        except Refused as refusal:
            if refusal.condition in _UNKNOWN:
                raise UnknownOperationError(str(refusal)) from refusal
            raise

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self, operation: str, body: Mapping[str, Any]) -> Answer:
        patience = Patience(PATIENCE_S)
        while True:
            try:
                if self._client is None:
                    self._client = Client.connect(self._connection_string, container_id=self._name)
                return self._client.request(self.entity, operation, dict(body))
            except ClientError as error:
                self.close()
                if not error.retryable or not patience.pause():
                    raise
