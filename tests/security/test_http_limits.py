"""Goal: what somebody without a key can send over HTTP is bounded in size and in time.

Method: bare sockets against the real listener, in this process where a time limit must be short,
and against a live broker where it need not.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from tests.hostile.http_talk import Answer, read_answer, talk
from tests.support.broker import Broker
from twinbus.admin import connection
from twinbus.admin.connection import HEADER_BYTES_MAX, HEADERS_MAX, read_whole
from twinbus.admin.listener import HttpListener
from twinbus.core.errors import BusError
from twinbus.server.lobby import Lobby


def ask(broker: Broker, head: str, body: bytes = b"") -> Answer:
    raw = f"{head}\r\nHost: localhost\r\n\r\n".encode() + body
    return read_answer(talk(broker.ready["ports"]["admin"], raw), is_head=False)


@pytest.mark.parametrize(
    "head",
    [
        "GET / HTTP/1.1\r\nX: " + "y" * (HEADER_BYTES_MAX + 1),
        "GET /" + "y" * (HEADER_BYTES_MAX + 1) + " HTTP/1.1",
        "GET / HTTP/1.1" + "\r\nX: y" * (HEADERS_MAX + 1),
    ],
    ids=["a long header", "a long address", "many headers"],
)
def test_a_large_head_is_refused(broker: Broker, head: str) -> None:
    answer = ask(broker, head)
    assert answer.status == 431
    assert b"TrackingId" in answer.body


def test_a_stranger_is_refused_before_the_body_is_read(broker: Broker) -> None:
    """The gigabyte that is announced never comes, and nobody waits for it."""
    answer = ask(broker, "PUT /orders?api-version=2021-05 HTTP/1.1\r\nContent-Length: 1073741824")
    assert answer.status == 401


def test_little_is_read_of_somebody_who_signs_in(broker: Broker) -> None:
    body = json.dumps({"policy": "x", "key": "k" * 17_000}).encode()
    answer = ask(
        broker,
        "POST /console/api/sign-in HTTP/1.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}",
        body,
    )
    assert answer.status == 413
    assert json.loads(answer.body)["tracking_id"]


def test_what_is_packed_is_not_unpacked(broker: Broker) -> None:
    """So no small body becomes a large one."""
    body = b"not deflate at all"
    answer = ask(
        broker,
        "POST /console/api/sign-in HTTP/1.1\r\nContent-Type: application/json\r\n"
        f"Content-Encoding: deflate\r\nContent-Length: {len(body)}",
        body,
    )
    assert answer.status == 400
    assert "Traceback" not in broker.log


class Hasty:
    """A listener of this process, and what its lobby counts."""

    def __init__(self, listener: HttpListener, lobby: Lobby) -> None:
        self.port, self.lobby = listener.port, lobby


@pytest.fixture
async def hasty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Hasty]:
    monkeypatch.setattr(connection, "HEAD_WAIT_S", 0.2)
    monkeypatch.setattr(connection, "BODY_WAIT_S", 0.2)

    async def answer(request: web.Request) -> web.Response:
        try:
            return web.Response(body=await read_whole(request, 1000))
        except BusError as refusal:
            return web.Response(status=refusal.kind.status, text=refusal.text)

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    lobby = Lobby(lambda: 0)
    listener = HttpListener(application, None, lobby)
    await listener.start("127.0.0.1", 0)
    yield Hasty(listener, lobby)
    await listener.close()
    assert (lobby.strangers, lobby.known) == (0, 0), "everybody gave their place back"


async def heard(port: int, *words: bytes) -> bytes:
    """Say it piece by piece and listen until the listener hangs up, or for a while."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for piece in words:
        writer.write(piece)
        await asyncio.sleep(0.05)
    try:
        async with asyncio.timeout(10):
            return await reader.read()
    finally:
        writer.close()


async def test_a_head_that_trickles_is_cut_off(hasty: Hasty) -> None:
    trickle = [b"GET / HTTP/1.1\r\n", *[b"X: y\r\n"] * 3]
    answer = read_answer(await heard(hasty.port, *trickle), is_head=False)
    assert answer.status == 408
    assert b"TrackingId" in answer.body
    assert hasty.lobby.expelled_total == 1


async def test_a_second_head_has_no_more_time_than_the_first(hasty: Hasty) -> None:
    first = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    said = await heard(hasty.port, first, b"\r\n\r\n", b"GET / HT")
    assert said.startswith(b"HTTP/1.1 200")
    assert b"HTTP/1.1 408" in said


async def test_a_body_that_does_not_come_is_not_waited_for(hasty: Hasty) -> None:
    head = b"PUT / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 10\r\n\r\n"
    said = await heard(hasty.port, head, b"half")
    assert said.startswith(b"HTTP/1.1 408")
    assert b"did not come within" in said
