"""SASL and the protocol headers, as clients begin a connection."""

from __future__ import annotations

import pytest
from amqp_client import CLOSE, OPEN, Peer, Recorder, performative

from twinbus.amqp.codec import encode
from twinbus.amqp.framing import AMQP_HEADER, SASL_HEADER, frame, sasl_frame
from twinbus.amqp.handler import Handler
from twinbus.amqp.types import Described, Symbol, ULong


def init(mechanism: str, response: bytes | None) -> bytes:
    return sasl_frame(encode(Described(ULong(0x41), [Symbol(mechanism), response, "host"])))


def knowing(user: str, password: str) -> Recorder:
    recorder = Recorder()
    recorder.passwords[user] = password
    return recorder


def test_mechanisms_are_offered_at_once() -> None:
    peer = Peer()
    peer.write(SASL_HEADER)
    assert peer.headers == [SASL_HEADER]
    assert peer.sasl[0].code == 0x40
    # EXTERNAL is taken and not offered: a client with a password might choose it.
    assert peer.sasl[0][0] == ["ANONYMOUS", "PLAIN", "MSSBCBS"]
    assert all(type(name) is Symbol for name in peer.sasl[0][0])


@pytest.mark.parametrize("mechanism", ["ANONYMOUS", "MSSBCBS", "EXTERNAL"])
def test_nameless_mechanisms(mechanism: str) -> None:
    peer = Peer()
    peer.write(SASL_HEADER)
    peer.write(init(mechanism, b"whoever"))
    assert (peer.sasl[1].code, peer.sasl[1][0]) == (0x44, 0)
    peer.write(AMQP_HEADER)
    assert peer.headers == [SASL_HEADER, AMQP_HEADER]
    assert peer.send(OPEN, ["me"])[0].code == OPEN
    assert peer.server.user is None


def test_plain_with_the_right_password() -> None:
    peer = Peer(knowing("name", "key"))
    peer.write(SASL_HEADER + init("PLAIN", b"\0name\0key"))
    assert peer.sasl[1][0] == 0
    assert peer.server.user == "name"


@pytest.mark.parametrize(
    "response", [b"\0name\0wrong", b"\0other\0key", b"name", b"", b"\0\xff\0key", b"\0name\0\xff"]
)
def test_plain_with_anything_else(response: bytes) -> None:
    peer = Peer(knowing("name", "key"))
    peer.write(SASL_HEADER + init("PLAIN", response))
    assert peer.sasl[1][0] == 1
    assert peer.server.finished
    assert peer.server.user is None
    assert peer.recorder.calls[-1] == ("close",)


def test_a_handler_that_knows_no_passwords_refuses_them() -> None:
    peer = Peer(Handler())
    peer.write(SASL_HEADER + init("PLAIN", b"\0name\0key"))
    assert peer.sasl[1][0] == 1


def test_plain_without_initial_response_is_challenged() -> None:
    peer = Peer(knowing("name", "key"))
    peer.write(SASL_HEADER + init("PLAIN", None))
    assert peer.sasl[1].code == 0x42
    answer = sasl_frame(encode(Described(ULong(0x43), [b"\0name\0key"])))
    peer.write(answer)
    assert peer.sasl[2][0] == 0
    assert peer.server.user == "name"


def test_an_unknown_mechanism_is_refused() -> None:
    peer = Peer()
    peer.write(SASL_HEADER + init("GSSAPI", b""))
    assert peer.sasl[1][0] == 1
    assert peer.server.finished


@pytest.mark.parametrize(
    "wrong",
    [
        sasl_frame(encode(Described(ULong(0x43), [b"response first"]))),
        sasl_frame(b""),
        sasl_frame(b"junk"),
        frame(0, encode(Described(ULong(0x10), ["open too early"]))),
        b"\x00\x00\x00\x05xxxxxxx",
    ],
)
def test_nonsense_during_sasl_ends_the_connection(wrong: bytes) -> None:
    peer = Peer()
    peer.write(SASL_HEADER + wrong)
    assert peer.server.finished
    assert peer.heard == []
    assert peer.recorder.calls == [("close",)]


def test_a_connection_without_sasl() -> None:
    """The JavaScript SDK skips SASL when it has a ready-made signature."""
    peer = Peer()
    peer.write(AMQP_HEADER)
    assert peer.headers == [AMQP_HEADER]
    assert peer.send(OPEN, ["me"])[0].code == OPEN


@pytest.mark.parametrize(
    "header", [b"GET / HTTP", b"AMQP\x02\x01\x00\x00", b"AMQP\x00\x00\x09\x01"]
)
def test_an_unknown_header_is_answered_with_ours(header: bytes) -> None:
    peer = Peer()
    peer.write(header)
    assert peer.headers == [SASL_HEADER]
    assert peer.server.finished
    assert peer.recorder.calls == [("close",)]


def test_sasl_twice_is_refused() -> None:
    peer = Peer()
    peer.write(SASL_HEADER + init("ANONYMOUS", b"") + SASL_HEADER)
    assert peer.headers == [SASL_HEADER, AMQP_HEADER]
    assert peer.server.finished


def test_everything_in_one_burst() -> None:
    peer = Peer()
    burst = SASL_HEADER + init("ANONYMOUS", b"") + AMQP_HEADER + performative(OPEN, ["me"])
    peer.write(burst + performative(CLOSE, []))
    assert [heard.code for heard in peer.heard] == [OPEN, CLOSE]
