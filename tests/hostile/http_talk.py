"""HTTP by hand: bytes that may be no HTTP go out, what comes back is taken apart strictly.

It knows just enough of HTTP 1.1 to tell a whole answer from a broken one, and shares no code
with the server.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass

ANSWER_WAIT_S = 20.0
_NO_BODY = (204, 304)


class Malformed(AssertionError):
    """An answer that is no HTTP."""


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


def talk(port: int, request: bytes, wait_s: float = ANSWER_WAIT_S) -> bytes:
    """Send the bytes; give what comes back until the server closes or has said a whole answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=wait_s) as connection:
        said = b""
        try:
            connection.sendall(request)
            while piece := connection.recv(1 << 18):
                said += piece
                if is_whole(said, is_head=request.startswith(b"HEAD ")):
                    break
        except (ConnectionError, TimeoutError):
            pass
        return said


def is_whole(said: bytes, *, is_head: bool) -> bool:
    try:
        read_answer(said, is_head=is_head)
    except Malformed:
        return False
    return True


def read_answer(said: bytes, *, is_head: bool) -> Answer:
    head, end, rest = said.partition(b"\r\n\r\n")
    if not end:
        raise Malformed(f"an answer without an end of its head: {said[:200]!r}")
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, status = first.partition(" ")
    if version not in ("HTTP/1.0", "HTTP/1.1") or not status[:3].isdigit():
        raise Malformed(f"a status line {first!r}")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise Malformed(f"a header {line!r}")
        headers[name.casefold()] = value.strip()
    number = int(status[:3])
    if is_head or number in _NO_BODY or number < 200:
        return Answer(number, headers, b"")
    return Answer(number, headers, _body(headers, rest))


def _body(headers: dict[str, str], rest: bytes) -> bytes:
    if headers.get("transfer-encoding") == "chunked":
        return _chunks(rest)
    length = headers.get("content-length", "")
    if not length.isdigit():
        raise Malformed(f"neither a length nor chunks: {headers}")
    if len(rest) < int(length):
        raise Malformed(f"{len(rest)} bytes of {length}")
    return rest[: int(length)]


def _chunks(rest: bytes) -> bytes:
    whole = b""
    while True:
        size, end, rest = rest.partition(b"\r\n")
        if not end:
            raise Malformed("a chunk without its size")
        count = int(size, 16)
        if not count:
            return whole
        if len(rest) < count + 2:
            raise Malformed("a chunk that is cut off")
        whole, rest = whole + rest[:count], rest[count + 2 :]
