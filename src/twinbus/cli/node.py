"""An entity's `$management` node: browsing, and what only this broker can do.

Everything that needs names of the SDK beginning with an underscore is here, with the reason.
Requests go over the SDK's connection with its authentication and retries; answers come back
as they are, messages as their bytes, because the SDK's decoder forgets types.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from twinbus.amqp.errors import DecodeError
from twinbus.cli.failures import FAILURE, NOT_FOUND, REFUSED, CommandError
from twinbus.cli.remote import BRISK
from twinbus.forms.message_form import sequence_number, to_json

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusClient

_PAGE = 250
# Azure's limit; below this broker's.
_DELETED_AT_ONCE = 4_000
# The broker's clock may be ahead of this machine's.
_AHEAD_MS = 300_000
# What a broker answers to an operation that it does not know.
_UNKNOWN_OPERATION = (400, 405, 501)
# And what this broker says of one that it knows, where there is nothing to receive.
_IS_A_TOPIC = "is a topic:"
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
        """Tell whether the other end knows this broker's own operations; changes nothing.

        Its refusal is raised if it does and this is a topic.
        """
        try:
            self.request("twinbus:undefer", {"sequence-numbers": []})
        except Refusal as refusal:
            if refusal.status in _UNKNOWN_OPERATION and _IS_A_TOPIC not in str(refusal):
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
        self, from_sequence_number: int = 1, **options: Any
    ) -> Iterator[list[dict[str, Any]]]:
        """Page by page to the end, each message as its JSON form; options as for `peek`.

        Of one that cannot be read there is its number, and why under `unreadable`.
        """
        while page := self.peek(from_sequence_number, **options):
            yield [shown_if_readable(payload) for payload in page]
            from_sequence_number = sequence_number(page[-1]) + 1

    def resubmit(self, sequence_numbers: Sequence[int]) -> int:
        """Put dead letters back where they died, each in one step (this broker only).

        Gives how many went; large ones go some at a time.
        """
        numbers = [_typed("LONG", number) for number in sequence_numbers]
        return int(self.request("twinbus:resubmit", {"sequence-numbers": numbers})["message-count"])

    def last_number(self) -> int:
        """The sequence number of the last message that is there, 0 if there is none."""
        found, stride = 0, 1
        while page := self.peek(found + stride, 1, bodies=False):
            found, stride = sequence_number(page[0]), stride * 2
        # It is before the place where nothing was found.
        while stride > 1:
            stride //= 2
            if page := self.peek(found + stride, 1, bodies=False):
                found = sequence_number(page[0])
        return found

    def purge(self, state: str) -> Iterator[int]:
        """Remove the messages in a state, some at a time; gives how many (this broker only).

        A step that is not full has found the end: what comes meanwhile could go on for ever.
        """
        count = _DELETED_AT_ONCE
        while count == _DELETED_AT_ONCE:
            body = {"state": state, "message-count": _typed("INT", _DELETED_AT_ONCE)}
            count = int(self.request("twinbus:purge", body)["message-count"])
            yield count

    def undefer(self, sequence_numbers: Sequence[int]) -> int:
        """Make deferred messages active again, in their old places (this broker only).

        Gives how many; those that somebody has locked or settled meanwhile are passed over.
        """
        numbers = [_typed("LONG", number) for number in sequence_numbers]
        try:
            self.request("twinbus:undefer", {"sequence-numbers": numbers})
        except Refusal as refusal:
            # It takes all of them or none, and one is not deferred any more.
            if refusal.code != NOT_FOUND:
                raise
            if len(numbers) == 1:
                return 0
            middle = len(numbers) // 2
            return self.undefer(sequence_numbers[:middle]) + self.undefer(sequence_numbers[middle:])
        return len(numbers)

    def delete(self) -> Iterator[int]:
        """Remove the active messages of now, some at a time, on any Service Bus; gives how many."""
        body = {
            "message-count": _typed("INT", _DELETED_AT_ONCE),
            "enqueued-time-utc": _typed("TIMESTAMP", time.time_ns() // 1_000_000 + _AHEAD_MS),
        }
        # One that removes fewer than it was asked to need not have found the end.
        while answer := self.request("com.microsoft:batch-delete-messages", body):
            count = int(answer.get("message-count", 0))
            if not count:
                return
            yield count


def shown_if_readable(payload: bytes) -> dict[str, Any]:
    """A message's JSON form; if it cannot be read, nothing but its number and why."""
    try:
        return to_json(payload)
    except DecodeError as error:
        # Brokers take in what they need not read, such as a text that is no UTF-8.
        return {"sequence_number": sequence_number(payload), "unreadable": str(error)}


def _typed(kind: str, value: Any) -> dict[str, Any]:
    """A value with its AMQP type, as the SDK's encoder takes it."""
    return {"TYPE": kind, "VALUE": value}


def _answer(status: int, message: Any, description: Any, **_: Any) -> tuple[int, Any, str]:
    return status, message.value, _text(description or f"status {status}")


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
