"""The few places where the SDK's public face is too coarse for the pairing library.

Everything that touches a name of the SDK beginning with an underscore is in this file, each
thing with the reason; tests pin them to the SDK version. The rest of the library uses the
public API only.
"""

from collections.abc import Mapping
from typing import Any

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch, ServiceBusReceivedMessage

_DATA_SECTION = 5
_DELIVERY_ID, _DELIVERY_TAG, _MORE, _PAYLOAD = 1, 2, 5, 11


def amqp_long(value: int) -> Mapping[str, object]:
    """A property value that goes out as an AMQP long; a plain int would be 32 bits."""
    return {"TYPE": "LONG", "VALUE": value}


def amqp_timestamp(value_ms: int) -> Mapping[str, object]:
    return {"TYPE": "TIMESTAMP", "VALUE": value_ms}


def messages_of(batch: ServiceBusMessageBatch) -> list[ServiceBusMessage]:
    """What an application put into a batch: it must be rewritten one by one (P8)."""
    return list(batch._messages)


def fill_raw(
    batch: ServiceBusMessageBatch,
    payload: bytes,
    session_id: str | None,
    partition_key: str | None,
) -> ServiceBusMessageBatch:
    """Put an encoded message into an empty batch as it is.

    A batch carries encoded messages, so this is the one road by which the SDK sends bytes
    that it did not encode itself. The envelope names session and partition key, as the
    SDK's own batches do, for entities that are partitioned.
    """
    message: Any = batch._message
    message[_DATA_SECTION].append(payload)
    batch._count = 1
    batch._amqp_transport.set_batch_envelope_properties(message, None, session_id, partition_key)
    return batch


def is_closed(handler: Any) -> bool:
    """Tell whether a sender or receiver was closed: by hand, or because its client was."""
    closed: bool = handler._shutdown.is_set()
    return closed


def end_poll(receiver: Any) -> None:
    """Let a long poll that runs in another task or thread return what it has, soon."""
    handler = receiver._handler
    if handler is not None:
        handler._shutdown = True


def withdraw_credit(receiver: Any) -> Any:
    """Ask the broker to send no more for now (to be awaited where the SDK is asynchronous).

    The SDK leaves the rest of its credit standing when a poll returns. What then arrives it
    gives back at once, only to get it again, and messages lose their order on the way.
    """
    return receiver._handler._link.flow(link_credit=0)


class PayloadTap:
    """Keeps the bytes of what a receiver gets, beside the decoded message (see `rewrite`).

    The tap sits on the receiver's link; when the SDK opened a new link by itself, the
    messages of that link have no payload here, and `sits_on` tells so. Payloads go by the
    delivery's tag, which is its lock: delivery ids begin anew on every connection, and the
    bytes of one message must never be taken for another's.
    """

    def __init__(self) -> None:
        self._payloads: dict[bytes, bytearray] = {}
        self._current = b""
        self._current_is_whole = True
        self._link: Any = None

    def sits_on(self, receiver: Any) -> bool:
        handler = receiver._handler
        return handler is not None and handler._link is self._link and self._link is not None

    def put_on(self, receiver: Any) -> None:
        """Listen to an open receiver; its first messages come only when it asks for them."""
        link = receiver._handler._link
        pass_on = link._incoming_transfer

        def keep_and_pass_on(frame: Any) -> Any:
            # A link that was left says nothing any more, whatever still arrives on it.
            if link is self._link:
                self._keep(frame)
            return pass_on(frame)

        link._incoming_transfer = keep_and_pass_on
        self._link = link
        self._payloads.clear()
        self._current_is_whole = True

    def forget(self) -> None:
        """Drop payloads nobody took: of messages that the SDK gave back by itself."""
        unfinished = None if self._current_is_whole else self._payloads[self._current]
        self._payloads.clear()
        if unfinished is not None:
            self._payloads[self._current] = unfinished

    def take(self, message: ServiceBusReceivedMessage, receiver: Any) -> bytes | None:
        """The bytes of a message; None if it may have come over a link that was not tapped."""
        if not self.sits_on(receiver):
            return None
        tag = message._delivery_tag
        payload = None if tag is None else self._payloads.pop(tag, None)
        return None if payload is None else bytes(payload)

    def _keep(self, frame: Any) -> None:
        # The later frames of a large message carry neither delivery id nor tag.
        if frame[_DELIVERY_ID] is not None:
            self._current = frame[_DELIVERY_TAG]
            self._payloads[self._current] = bytearray()
        self._payloads[self._current] += frame[_PAYLOAD]
        self._current_is_whole = not frame[_MORE]
