"""An entity's `$management` node: browsing, and what only this broker can do.

Everything that needs names of the SDK beginning with an underscore is here, with the reason.
Requests go over the SDK's connection with its authentication and retries; answers come back
as they are, messages as their bytes, because the SDK's decoder forgets types.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from twinbus.amqp.errors import DecodeError
from twinbus.cli.failures import FAILURE, NOT_FOUND, REFUSED, CommandError
from twinbus.cli.remote import BRISK
from twinbus.forms.message_form import sequence_number, to_json

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusClient

_PAGE = 250
# Azure's limit.
_DELETED_AT_ONCE = 4_000
# What a broker answers to an operation that it does not know.
_UNKNOWN_OPERATION = (400, 405, 501)
_NO_CONTENT = (202, 204)


class Refusal(CommandError):
    """A request was answered with an error."""

    def __init__(self, status: int, text: str) -> None:
        codes = {401: REFUSED, 403: REFUSED, 404: NOT_FOUND}
        super().__init__(text, codes.get(status, FAILURE))
        self.status = status


class Node:
    """The management node of one entity or sub-queue."""

    def __init__(self, client: ServiceBusClient, path: str) -> None:
        made_by: Any = client
        # The SDK's only handler that opens no link of its own: a receiver's would be refused
        # by an entity with sessions, a sender's by a subscription.
        self._handler: Any = made_by._create_session_browser(path, **BRISK)

    def request(self, operation: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Ask; gives the answer's map, empty if there is nothing."""
        status, value, text = self._handler._mgmt_request_response_with_retry(
            operation.encode(), dict(body), _answer, keep_alive_associated_link=False
        )
        if status in _NO_CONTENT:
            return {}
        if status != 200:
            raise Refusal(status, text)
        return {_text(key): found for key, found in (value or {}).items()}

    def is_twinbus(self) -> bool:
        """Tell whether the other end knows this broker's own operations; changes nothing."""
        try:
            self.request("twinbus:undefer", {"sequence-numbers": []})
        except Refusal as refusal:
            if refusal.status in _UNKNOWN_OPERATION:
                return False
            raise
        return True

    def peek(
        self,
        from_sequence_number: int = 1,
        count_max: int = _PAGE,
        *,
        state: str | None = None,
        session_id: str | None = None,
        bodies: bool = True,
    ) -> list[bytes]:
        """One page of encoded messages, in the order of their sequence numbers."""
        body: dict[str, Any] = {
            "from-sequence-number": _typed("LONG", from_sequence_number),
            "message-count": _typed("INT", min(count_max, _PAGE)),
        }
        if state is not None:
            body["state"] = state
        if session_id is not None:
            body["session-id"] = session_id
        if not bodies:
            body["omit-message-body"] = True
        answer = self.request("com.microsoft:peek-message", body)
        return [entry[b"message"] for entry in answer.get("messages", [])]

    def browse(
        self, from_sequence_number: int = 1, *, even_unreadable: bool = False, **options: Any
    ) -> Iterator[list[dict[str, Any]]]:
        """Page by page to the end, each message as its JSON form; options as for `peek`.

        Of one that cannot be read there may be no more than its number, if that is enough.
        """
        show = shown_if_readable if even_unreadable else _shown
        while page := self.peek(from_sequence_number, **options):
            yield [show(payload) for payload in page]
            from_sequence_number = sequence_number(page[-1]) + 1

    def resubmit(self, sequence_numbers: Sequence[int]) -> int:
        """Put dead letters back where they died, each in one step (this broker only).

        Gives how many went; large ones go some at a time.
        """
        numbers = [_typed("LONG", number) for number in sequence_numbers]
        return int(self.request("twinbus:resubmit", {"sequence-numbers": numbers})["message-count"])

    def delete(self, before_ms: int) -> int:
        """Remove some messages that came before a time; gives how many, 0 at the end."""
        body = {
            "message-count": _typed("INT", _DELETED_AT_ONCE),
            "enqueued-time-utc": _typed("TIMESTAMP", before_ms),
        }
        return int(
            self.request("com.microsoft:batch-delete-messages", body).get("message-count", 0)
        )


def shown_if_readable(payload: bytes) -> dict[str, Any]:
    """A message's JSON form; if it cannot be read, nothing but its number."""
    try:
        return to_json(payload)
    except DecodeError:
        return {"sequence_number": sequence_number(payload)}


def _shown(payload: bytes) -> dict[str, Any]:
    try:
        return to_json(payload)
    except DecodeError as error:
        # Brokers take in what they need not read, such as a text that is no UTF-8.
        number = sequence_number(payload)
        raise CommandError(
            f"the message with sequence number {number} cannot be read: {error}"
        ) from error


def _typed(kind: str, value: Any) -> dict[str, Any]:
    """A value with its AMQP type, as the SDK's encoder takes it."""
    return {"TYPE": kind, "VALUE": value}


def _answer(status: int, message: Any, description: Any, **_: Any) -> tuple[int, Any, str]:
    return status, message.value, _text(description or f"status {status}")


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
