"""The smallest AMQP 1.0 client that is fast: it knows every acknowledgement it was given.

Enters: a port, a queue, message ids. Leaves: the ledger of acknowledged ids, or the ids that
the queue held. Written apart from the broker's own codec, so that the two cannot share a
mistake; it trusts a broker that it did start and checks nothing else.
"""

from __future__ import annotations

import re
import socket
import struct
from typing import Any

from tests.support.broker import KEY, KEY_NAME

OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION = range(0x10, 0x16)
SASL_INIT = 0x41
# An accepted outcome starts so, however its empty list is written.
ACCEPTED = b"\x00\x53\x24"
ACCEPTED_STATE = ACCEPTED + b"\x45"
NULL, TRUE, FALSE = b"\x40", b"\x41", b"\x42"
CONSTANTS: dict[int, Any] = {0x40: None, 0x41: True, 0x42: False, 0x43: 0, 0x44: 0, 0x45: b""}
WINDOW_MAX = 2**31 - 1
MESSAGE_ID = re.compile(rb"round-\d+-\d{8}")


def uint(value: int) -> bytes:
    return struct.pack(">BI", 0x70, value)


def string(text: str, code: int = 0xA1) -> bytes:
    raw = text.encode()
    return bytes((code, len(raw))) + raw


def described(code: int, *fields: bytes) -> bytes:
    body = b"".join(fields)
    return struct.pack(">BBBBII", 0, 0x53, code, 0xD0, len(body) + 4, len(fields)) + body


def frame(body: bytes, kind: int = 0) -> bytes:
    return struct.pack(">IBBH", len(body) + 8, 2, kind, 0) + body


DURABLE = described(0x70, TRUE)
BODY = b"\x00\x53\x75\xb0" + struct.pack(">I", 1024) + b"x" * 1024


def value(data: bytes, at: int) -> tuple[Any, int]:
    """One AMQP value and where it ends; a described value is its list, compounds stay bytes."""
    code = data[at]
    if code == 0x00:
        _, at = value(data, at + 1)
        return value(data, at)
    if code in CONSTANTS:
        return CONSTANTS[code], at + 1
    width = code >> 4
    if width in (0x5, 0x6, 0x7, 0x8, 0x9):
        end = at + 1 + (1, 2, 4, 8, 16)[width - 5]
        return int.from_bytes(data[at + 1 : end]), end
    size_bytes = 1 if width in (0xA, 0xC, 0xE) else 4
    start = at + 1 + size_bytes
    end = start + int.from_bytes(data[at + 1 : start])
    return data[start:end], end


def fields(body: bytes, count: int) -> list[Any]:
    """The first fields of a performative; those left out are None."""
    header = 1 if body[3] == 0xC0 else 4
    present = int.from_bytes(body[4 + header : 4 + 2 * header]) if body[3] != 0x45 else 0
    at = 4 + 2 * header
    found: list[Any] = []
    for _ in range(min(count, present)):
        got, at = value(body, at)
        found.append(got)
    return found + [None] * (count - len(found))


class RawLink:
    """One connection with one link, the broker's answer to it already read."""

    def __init__(self, port: int, queue: str, *, sends: bool) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer, self._at = b"", 0
        self.socket.sendall(b"AMQP\x03\x01\x00\x00" + frame(_sasl_init(), kind=1))
        self._skip_header()
        for _ in ("mechanisms", "outcome"):
            self.next_frame()
        self.socket.sendall(b"AMQP\x00\x01\x00\x00" + _opening(queue, sends))
        self._skip_header()
        for expected in (OPEN, BEGIN, ATTACH):
            body = self.next_frame()
            assert body[2] == expected, f"the broker refused the link: {body!r}"

    def next_frame(self) -> bytes:
        """The body of the next frame; waits for it."""
        while not (body := self.frame_at_hand()):
            self._fill()
        return body

    def frame_at_hand(self) -> bytes | None:
        """The body of the next frame if all of it was received."""
        start = self._at
        head = self._buffer[start : start + 4]
        size = int.from_bytes(head)
        if len(head) < 4 or len(self._buffer) - start < size:
            return None
        self._at = start + size
        # An empty frame only says that the peer lives.
        return self._buffer[start + 8 : self._at] if size > 8 else self.frame_at_hand()

    def _fill(self) -> None:
        chunk = self.socket.recv(1 << 20)
        if not chunk:
            raise ConnectionResetError("the broker closed the connection")
        self._buffer, self._at = self._buffer[self._at :] + chunk, 0

    def _skip_header(self) -> None:
        while len(self._buffer) - self._at < 8:
            self._fill()
        self._at += 8

    def close(self) -> None:
        self.socket.close()


class RawSender(RawLink):
    """Sends numbered messages, many in flight; `acknowledged` is the ledger."""

    def __init__(self, port: int, queue: str) -> None:
        super().__init__(port, queue, sends=True)
        self.credit_limit = 0
        self.sent = 0
        self.acknowledged: set[int] = set()

    def send_up_to(self, count: int, prefix: str, *, in_flight_max: int = 2000) -> None:
        """One step: send what the windows allow, then take in what the broker answered."""
        room = in_flight_max - (self.sent - len(self.acknowledged))
        end = min(count, self.credit_limit, self.sent + room)
        if end > self.sent:
            self.socket.sendall(b"".join(transfer(n, prefix) for n in range(self.sent, end)))
            self.sent = end
        self.take_answers()

    def take_answers(self) -> None:
        """Wait for one answer, and read all that came with it."""
        body: bytes | None = self.next_frame()
        while body is not None:
            if body[2] == FLOW:
                flow = fields(body, 7)
                self.credit_limit = (flow[5] or 0) + flow[6]
            elif body[2] == DISPOSITION:
                _, first, last = fields(body, 3)
                assert ACCEPTED in body, f"a send was refused: {body!r}"
                self.acknowledged.update(range(first, (first if last is None else last) + 1))
            else:
                raise ConnectionResetError(f"the broker ended the link: {body!r}")
            body = self.frame_at_hand()


class RawReceiver(RawLink):
    """Empties a queue by peek-lock and complete, and waits until every settlement is answered."""

    def __init__(self, port: int, queue: str) -> None:
        super().__init__(port, queue, sends=False)
        self.received = self.delivery_count = 0

    def drain(self, *, step: int = 5000) -> list[str]:
        """Every message id that the queue holds, in order of delivery; the queue is then empty."""
        ids: list[str] = []
        while got := self._step(step):
            ids += got
        return ids

    def ask(self, credit: int) -> None:
        """Give credit, and leave what comes unread."""
        self.socket.sendall(self._flow(credit, FALSE))

    def _step(self, credit: int) -> list[str]:
        self.socket.sendall(self._flow(credit, TRUE))
        ids: list[str] = []
        numbers: list[int] = []
        drained = False
        while not drained:
            body = self.next_frame()
            if body[2] == TRANSFER:
                numbers.append(fields(body, 2)[1])
                found = MESSAGE_ID.search(body)
                assert found, f"a message without its id: {body[:200]!r}"
                ids.append(found[0].decode())
                self.received += 1
            else:
                assert body[2] == FLOW, f"the broker ended the link: {body!r}"
                *_, self.delivery_count, credit_left = fields(body, 7)
                drained = credit_left == 0
        if numbers:
            self._complete(numbers[0], numbers[-1])
        return ids

    def _flow(self, credit: int, drain: bytes) -> bytes:
        session = (uint(self.received), uint(WINDOW_MAX), uint(0), uint(WINDOW_MAX))
        link = (uint(0), uint(self.delivery_count), uint(credit), NULL, drain)
        return frame(described(FLOW, *session, *link))

    def _complete(self, first: int, last: int) -> None:
        self.socket.sendall(
            frame(described(DISPOSITION, TRUE, uint(first), uint(last), FALSE, ACCEPTED_STATE))
        )
        left = last - first + 1
        while left:
            body = self.next_frame()
            if body[2] == DISPOSITION:
                assert ACCEPTED in body, f"a settlement was refused: {body!r}"
                _, start, end = fields(body, 3)
                left -= (start if end is None else end) - start + 1


def _sasl_init() -> bytes:
    response = f"\0{KEY_NAME}\0{KEY}"
    return described(SASL_INIT, string("PLAIN", 0xA3), string(response, 0xA0))


def _opening(queue: str, sends: bool) -> bytes:
    node, here = string(queue), string("raw")
    source = described(0x28, here if sends else node)
    target = described(0x29, node if sends else here)
    # The receiver settles second: only then is a settlement answered.
    modes = (b"\x50\x00", b"\x50\x01")
    role = FALSE if sends else TRUE
    link = (string("raw"), uint(0), role, *modes, source, target, NULL, NULL, uint(0))
    windows = (uint(0), uint(WINDOW_MAX), uint(WINDOW_MAX))
    return (
        frame(described(OPEN, string("raw"), string("localhost"), uint(65536)))
        + frame(described(BEGIN, NULL, *windows))
        + frame(described(ATTACH, *link))
    )


def transfer(number: int, prefix: str) -> bytes:
    """A message of one kilobyte, as a frame on the only link."""
    tag = struct.pack(">BBI", 0xA0, 4, number)
    head = described(TRANSFER, uint(0), uint(number), tag, uint(0), FALSE)
    return frame(head + DURABLE + described(0x73, string(f"{prefix}-{number:08}")) + BODY)
