"""The few places where the SDK's public face is too coarse for the pairing library.

Everything that touches a name of the SDK beginning with an underscore is in this file, each
thing with the reason; tests pin them to the SDK version. The rest of the library uses the
public API only.
"""

import contextlib
import socket
import ssl
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import certifi
from azure.servicebus import (
    ServiceBusMessage,
    ServiceBusMessageBatch,
    ServiceBusReceivedMessage,
    TransportType,
)

_READING = frozenset({"_read_frame", "receive_frame", "negotiate"})
_WRITING = "_outgoing_transfer"
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
    SDK's own batches do, for entities that are partitioned; not where a message that its
    entity takes would become too long by it.
    """
    message: Any = batch._message
    message[_DATA_SECTION].append(payload)
    batch._count = 1
    transport = batch._amqp_transport
    bare = list(message)
    transport.set_batch_envelope_properties(message, None, session_id, partition_key)
    if transport.get_batch_message_encoded_size(message) > batch.max_size_in_bytes:
        message[:] = bare
    return batch


def failed_on_reading(error: BaseException) -> bool:
    """Tell whether the SDK failed on what the peer said, and not on what it was to send.

    The same built-in exceptions come of both; where they were raised tells them apart. A message
    may be encoded while a frame is read: one that gives credit.
    """
    names = {frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)}
    return not names.isdisjoint(_READING) and _WRITING not in names


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


def around_open(handler: Any, run: Callable[[Callable[[], None], float | None], None]) -> None:
    """Let `run` do it whenever a synchronous sender or receiver opens its connection.

    It gets the opening itself and the seconds that the SDK allows for it. The SDK looks at
    them only between its steps, and the first of these may wait for ever.
    """
    own_open = handler._open

    def open_through(timeout: float | None = None) -> None:
        if not handler._running:
            run(partial(own_open, timeout), timeout)

    handler._open = open_through


def cut(handler: Any) -> None:
    """Make whatever waits for this handler's socket return at once, with an error.

    A time-out on the socket would not do: the SDK takes it for a frame without content.
    """
    with contextlib.suppress(AttributeError, OSError):
        sock = handler._handler._connection._transport.sock
        # A WebSocket's is no socket; the SDK never waits long for it.
        if isinstance(sock, socket.socket):
            # Not the method of a TLS socket: it takes away what the waiting thread is using.
            socket.socket.shutdown(sock, socket.SHUT_RDWR)


def bound_handshake(handler: Any, seconds: float) -> None:
    """Give the TLS handshake of a synchronous handler a time-out; the SDK gives it none.

    `cut` does not reach it: until it is done nobody else knows the socket.
    """
    config = handler._config
    # The handshake below a WebSocket has a time-out.
    if config.use_tls and config.transport_type is TransportType.Amqp:
        config.ssl_context = _TimedHandshake(config.ssl_context, config.connection_verify, seconds)


class _TimedHandshake:
    """Stands for an SSL context where the SDK wants only its `wrap_socket`."""

    def __init__(self, given: ssl.SSLContext | None, ca_file: str | None, seconds: float) -> None:
        self._given = given
        self._ca_file = ca_file
        self._seconds = seconds

    def wrap_socket(self, sock: socket.socket, **options: Any) -> ssl.SSLSocket:
        context = self._given or self._usual_context()
        before_s = sock.gettimeout()
        sock.settimeout(self._seconds)
        wrapped = context.wrap_socket(sock, **options)
        wrapped.settimeout(before_s)
        return wrapped

    def _usual_context(self) -> ssl.SSLContext:
        """What the SDK makes when it is given none, and the error it looks for."""
        ca_file = self._ca_file or certifi.where()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            context.load_verify_locations(ca_file)
        except FileNotFoundError as error:
            error.filename = {"ca_certs": ca_file}
            raise
        return context


def keep_lock_only(message: Any) -> None:
    """Let go of what a received message says; it can still be settled.

    For that the SDK needs delivery id, delivery tag and the annotation that tells when the lock
    ends; these stay. It keeps the body twice, decoded and in the message that it decoded.
    """
    message._message = None
    raw = message._raw_amqp_message
    raw._data_body = raw._sequence_body = ()
    raw._value_body = raw._application_properties = None


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
