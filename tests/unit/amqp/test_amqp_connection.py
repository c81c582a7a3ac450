"""A connection from open to close: frames, errors and time."""

from __future__ import annotations

import pytest
from amqp_client import (
    ATTACH,
    BEGIN,
    CLOSE,
    DETACH,
    END,
    FLOW,
    OPEN,
    TRANSFER,
    Peer,
    Recorder,
    performative,
)

from twinbus.amqp.codec import encode
from twinbus.amqp.connection import KEEP_ALIVE_MS_MIN, LINKS_MAX, NEVER_MS, Connection
from twinbus.amqp.framing import AMQP_HEADER, EMPTY_FRAME, SASL_HEADER, frame
from twinbus.amqp.link import Link
from twinbus.amqp.session import HANDLE_MAX
from twinbus.amqp.types import Described, Symbol, UInt, ULong, UShort


def closed_with(peer: Peer) -> str | None:
    """The condition of the server's close."""
    assert peer.server.finished
    last = peer.heard[-1]
    assert last.code == CLOSE
    assert peer.recorder.of("close") == [("close",)]
    error = last[0]
    if error is None:
        return None
    assert len(error.value) == 3
    return str(error.value[0])


def test_open_is_answered_and_told() -> None:
    peer = Peer()
    peer.write(AMQP_HEADER)
    fields = ["client", "host", UInt(1024), UShort(9), UInt(0), None, None, None, None]
    heard = peer.send(OPEN, [*fields, {Symbol("product"): "p"}])
    assert heard[0].fields == ["twinbus", None, 65536, 4999, 240_000]
    assert peer.recorder.calls == [("open", "client", "host")]
    assert peer.server.remote_properties == {"product": "p"}
    assert peer.server.remote_max_frame_size == 1024


def test_a_peer_s_tiny_frames_are_held_to_the_minimum() -> None:
    peer = Peer()
    peer.write(AMQP_HEADER)
    peer.send(OPEN, ["client", None, UInt(1)])
    assert peer.server.remote_max_frame_size == 512


def test_begin_is_answered_on_its_channel() -> None:
    peer = Peer().handshake(channel=7)
    begin = peer.heard[-1]
    assert (begin.channel, begin.code, begin[0]) == (7, BEGIN, 7)
    assert list(peer.server.sessions) == [7]


def test_close_is_answered() -> None:
    peer = Peer().handshake()
    peer.attach(0, receiver=False)
    peer.send(CLOSE, [])
    assert closed_with(peer) is None
    assert peer.recorder.calls[-2:] == [("detach", 0, True), ("close",)]


def test_close_before_open_is_answered() -> None:
    peer = Peer()
    peer.write(AMQP_HEADER + performative(CLOSE, []))
    assert [heard.code for heard in peer.heard] == [OPEN, CLOSE]
    assert closed_with(peer) is None


def test_end_is_answered_and_ends_its_links() -> None:
    peer = Peer().handshake()
    peer.attach(0, receiver=False)
    heard = peer.send(END, [])
    assert [reply.code for reply in heard] == [END]
    assert peer.recorder.of("detach") == [("detach", 0, True)]
    assert peer.server.sessions == {}
    assert peer.server.link_count == 0


def test_frames_on_an_unmapped_channel_are_ignored() -> None:
    """The Python SDK detaches its management links after it has ended their session."""
    peer = Peer().handshake()
    peer.send(END, [])
    assert peer.send(DETACH, [UInt(0), False]) == []
    assert peer.send(FLOW, [UInt(0)], channel=3) == []
    assert not peer.server.finished
    peer.begin()
    assert list(peer.server.sessions) == [0]


def test_empty_frames_are_heard_and_need_no_answer() -> None:
    peer = Peer().handshake()
    assert peer.write(EMPTY_FRAME) == []


@pytest.mark.parametrize(
    ("data", "condition"),
    [
        (b"\x00\x00\x00\x07\x02\x00\x00\x00", "amqp:connection:framing-error"),
        (b"\x00\x01\x00\x01\x02\x00\x00\x00", "amqp:connection:framing-error"),
        (b"\x00\x00\x00\x0c\x01\x00\x00\x00....", "amqp:connection:framing-error"),
        (b"\x00\x00\x00\x0c\x04\x00\x00\x00....", "amqp:connection:framing-error"),
        (b"\x00\x00\x00\x0c\x02\x01\x00\x00....", "amqp:connection:framing-error"),
        (frame(0, b"junk"), "amqp:decode-error"),
        (frame(0, b"\x00\x53"), "amqp:decode-error"),
        (frame(0, encode(Described(ULong(0x77), []))), "amqp:decode-error"),
        (frame(0, encode(Described(ULong(ATTACH), {}))), "amqp:decode-error"),
        (performative(ATTACH, ["name", "handle"]), "amqp:decode-error"),
        (performative(ATTACH, ["no handle"]), "amqp:connection:framing-error"),
        (performative(ATTACH, ["l", UInt(HANDLE_MAX + 1)]), "amqp:connection:framing-error"),
        (performative(OPEN, ["again"]), "amqp:illegal-state"),
        (performative(BEGIN, [None, UInt(0), UInt(1), UInt(1)]), "amqp:illegal-state"),
        (
            performative(BEGIN, [None, UInt(0), UInt(1), UInt(1)], channel=5000),
            "amqp:connection:framing-error",
        ),
        (performative(TRANSFER, [UInt(9), UInt(0)]), "amqp:session:unattached-handle"),
    ],
)
def test_errors_close_the_connection(data: bytes, condition: str) -> None:
    peer = Peer().handshake()
    peer.write(data + performative(OPEN, ["nobody reads this"]))
    assert closed_with(peer) == condition
    assert peer.write(EMPTY_FRAME) == []


def test_a_frame_before_open_is_answered_with_open_and_close() -> None:
    peer = Peer()
    peer.write(AMQP_HEADER + performative(BEGIN, [None, UInt(0), UInt(1), UInt(1)]))
    assert [heard.code for heard in peer.heard] == [OPEN, CLOSE]
    assert closed_with(peer) == "amqp:illegal-state"


def test_symbolic_descriptors_are_understood() -> None:
    peer = Peer()
    body = encode(Described(Symbol("amqp:open:list"), ["client"]))
    assert peer.write(AMQP_HEADER + frame(0, body))[0].code == OPEN


def test_frames_cut_anywhere() -> None:
    data = AMQP_HEADER + performative(OPEN, ["client"]) + EMPTY_FRAME + performative(CLOSE, [])
    for step in (1, 3, 7, 8, 9):
        peer = Peer()
        for start in range(0, len(data), step):
            peer.write(data[start : start + step])
        assert [heard.code for heard in peer.heard] == [OPEN, CLOSE]


def test_a_stranger_cannot_make_us_hold_a_frame_beyond_the_limit() -> None:
    peer = Peer(max_frame_size=512).handshake()
    peer.write((513).to_bytes(4, "big") + b"\x02\x00\x00\x00")
    assert closed_with(peer) == "amqp:connection:framing-error"


def test_links_are_bounded() -> None:
    peer = Peer(Recorder(answer_attach=False)).handshake()
    for channel in (0, 1):
        if channel:
            peer.begin(channel)
        for handle in range(LINKS_MAX // 2):
            peer.attach(handle, receiver=True, channel=channel)
    assert peer.server.link_count == LINKS_MAX
    assert not peer.server.finished
    peer.attach(LINKS_MAX // 2, receiver=True)
    assert closed_with(peer) == "amqp:resource-limit-exceeded"


def test_close_by_us() -> None:
    peer = Peer().handshake()
    peer.attach(0, receiver=True)
    peer.server.close("amqp:connection:forced", "shutting down")
    peer.read()
    assert closed_with(peer) == "amqp:connection:forced"
    peer.server.close("amqp:internal-error", "again")
    peer.server.abort()
    assert not peer.server.has_output
    assert peer.recorder.of("close") == [("close",)]


def test_close_before_anything_was_said() -> None:
    peer = Peer()
    peer.server.close("amqp:connection:forced", "shutting down")
    assert peer.server.take_output() == b""
    assert peer.recorder.calls == [("close",)]


def test_abort_forgets_what_was_to_be_written() -> None:
    peer = Peer().handshake()
    peer.attach(0, receiver=True)
    peer.server.receive(performative(END, []), peer.now_ms)
    assert peer.server.has_output
    peer.server.abort()
    assert not peer.server.has_output
    assert peer.server.finished
    assert peer.recorder.calls[-2:] == [("detach", 0, True), ("close",)]


def test_what_a_handler_says_to_a_closed_connection_is_dropped() -> None:
    class Late(Recorder):
        def on_detach(self, link: Link, closed: bool) -> None:
            super().on_detach(link, closed)
            link.session.settle_incoming(0, 0, b"\x00\x53\x24\x45")
            link.session.connection.output.append(EMPTY_FRAME)
            link.session.connection.close("amqp:internal-error", "twice")

    peer = Peer(Late()).handshake()
    peer.attach(0, receiver=False)
    assert [heard.code for heard in peer.send(CLOSE, [])] == [CLOSE]
    assert peer.recorder.of("close") == [("close",)]


def test_a_handler_may_close_in_the_middle_of_a_burst() -> None:
    class Strict(Recorder):
        def on_attach(self, link: Link) -> None:
            super().on_attach(link)
            link.session.connection.close("amqp:not-allowed", "no links here")

    peer = Peer(Strict()).handshake()
    first = performative(ATTACH, ["a", UInt(0), True])
    second = performative(ATTACH, ["b", UInt(1), True])
    peer.write(first + second)
    assert len(peer.recorder.of("attach")) == 1
    assert closed_with(peer) == "amqp:not-allowed"


def test_what_a_handler_raises_goes_through() -> None:
    class Broken(Recorder):
        def on_open(self, connection: Connection) -> None:
            raise IndexError("a bug of the broker")

    peer = Peer(Broken())
    peer.write(AMQP_HEADER)
    with pytest.raises(IndexError):
        peer.send(OPEN, ["client"])


# ---------------------------------------------------------------------------------------
# Time


def test_an_unfinished_handshake_is_given_up() -> None:
    peer = Peer(handshake_timeout_ms=500)
    peer.write(SASL_HEADER)
    assert peer.server.deadline_ms() == peer.now_ms + 500
    peer.server.tick(peer.now_ms + 499)
    assert not peer.server.finished
    peer.server.tick(peer.now_ms + 500)
    assert peer.server.finished
    assert peer.recorder.calls == [("close",)]
    assert peer.server.deadline_ms() == NEVER_MS
    peer.server.tick(peer.now_ms + 501)
    assert peer.recorder.calls == [("close",)]


def test_a_silent_peer_is_closed() -> None:
    peer = Peer(idle_timeout_ms=1000).handshake()
    peer.now_ms += 600
    peer.write(EMPTY_FRAME)
    assert peer.server.deadline_ms() == peer.now_ms + 1000
    peer.server.tick(peer.now_ms + 999)
    assert not peer.server.finished
    peer.server.tick(peer.now_ms + 1000)
    peer.read()
    assert closed_with(peer) == "amqp:connection:forced"


def test_no_idle_timeout_waits_for_ever() -> None:
    peer = Peer(idle_timeout_ms=0).handshake()
    assert peer.server.deadline_ms() == NEVER_MS
    peer.server.tick(peer.now_ms + 10**9)
    assert not peer.server.finished


@pytest.mark.parametrize("step_ms", [3_600_000, -3_600_000])
def test_a_clock_that_is_set_makes_no_peer_silent(step_ms: int) -> None:
    peer = Peer(idle_timeout_ms=1000).handshake()
    peer.server.shift(step_ms)
    peer.now_ms += step_ms
    assert peer.server.deadline_ms() == peer.now_ms + 1000
    peer.server.tick(peer.now_ms + 999)
    peer.write(EMPTY_FRAME)
    peer.server.tick(peer.now_ms + 1998)
    assert not peer.server.finished
    peer.server.tick(peer.now_ms + 1999)
    assert peer.server.finished


def opened_with_idle_timeout(idle_timeout_ms: int) -> Peer:
    peer = Peer()
    peer.write(AMQP_HEADER)
    peer.send(OPEN, ["client", None, None, None, UInt(idle_timeout_ms)])
    return peer


def test_a_peer_hears_from_us_twice_in_its_idle_timeout() -> None:
    peer = opened_with_idle_timeout(60_000)
    assert peer.server.deadline_ms() == peer.now_ms + 30_000
    peer.server.tick(peer.now_ms + 29_999)
    assert not peer.server.has_output
    peer.server.tick(peer.now_ms + 30_000)
    assert peer.server.take_output() == EMPTY_FRAME
    assert peer.server.deadline_ms() == peer.now_ms + 60_000


def test_what_is_written_anyway_counts_as_heard() -> None:
    peer = opened_with_idle_timeout(60_000)
    peer.now_ms += 20_000
    peer.begin()
    assert peer.server.deadline_ms() == peer.now_ms + 30_000
    peer.server.receive(
        performative(BEGIN, [None, UInt(0), UInt(1), UInt(1)], channel=1), peer.now_ms
    )
    peer.server.tick(peer.now_ms + 30_000)
    assert [heard.code for heard in peer.read()] == [BEGIN]


def test_a_tiny_idle_timeout_cannot_keep_us_busy() -> None:
    peer = opened_with_idle_timeout(1)
    assert peer.server.deadline_ms() == peer.now_ms + KEEP_ALIVE_MS_MIN


def test_time_that_stands_still_or_goes_back_does_no_harm() -> None:
    peer = opened_with_idle_timeout(60_000)
    peer.server.receive(EMPTY_FRAME, peer.now_ms - 5000)
    assert peer.server.deadline_ms() == peer.now_ms + 30_000
