"""Messages whose end has not come: what they weigh, all links of a connection together."""

from __future__ import annotations

import pytest
from amqp_client import CLOSE, DETACH, END, Peer, Recorder

from twinbus.amqp.link import Link
from twinbus.amqp.types import Described, UInt, ULong

MOST = 10_000
TAG_BYTES = len(b"tag")


class Roomy(Recorder):
    """Takes messages that are larger than what may be unfinished."""

    def on_attach(self, link: Link) -> None:
        self.links.append(link)
        link.accept(max_message_size=2 * MOST)
        link.grant(100)


def sending(*handles: int, channels: int = 1) -> Peer:
    peer = Peer(Roomy(), partial_bytes_max=MOST).handshake()
    for channel in range(1, channels):
        peer.begin(channel)
    for handle in handles:
        for channel in range(channels):
            peer.attach(handle, receiver=False, channel=channel)
    return peer


def held(peer: Peer) -> int:
    return peer.server.partial_bytes


def test_what_links_and_sessions_hold_is_added_up() -> None:
    peer = sending(0, 1, channels=2)
    for channel in (0, 1):
        for handle in (0, 1):
            for _ in range(2):
                peer.transfer(handle, handle, b"x" * 100, more=True, channel=channel)
    assert held(peer) == 4 * (200 + TAG_BYTES)


def test_one_piece_too_many_ends_the_connection() -> None:
    peer = sending(*range(10))
    for handle in range(9):
        peer.transfer(handle, handle, b"x" * 1_100, more=True)
    assert not peer.server.finished
    closed = peer.transfer(9, 9, b"x" * 1_100, more=True)[-1]
    assert closed.code == CLOSE
    assert closed[0].value[0] == "amqp:resource-limit-exceeded"
    assert "10000 bytes" in closed[0].value[1]
    assert held(peer) == 0


def test_what_is_whole_does_not_count() -> None:
    peer = sending(0, 1)
    for number in range(50):
        peer.transfer(0, number, b"x" * 5_000, more=True)
        assert held(peer) == 5_000 + TAG_BYTES
        peer.transfer(0, number, b"x" * 4_000)
        assert held(peer) == 0
    assert len(peer.recorder.of("transfer")) == 50
    assert not peer.server.finished


def test_a_message_s_last_frame_is_handed_over_at_the_limit() -> None:
    peer = sending(0)
    peer.transfer(0, 0, b"x" * (MOST - TAG_BYTES), more=True)
    peer.transfer(0, 0, b"x" * 100)
    assert len(peer.recorder.of("transfer")[0][6]) == MOST - TAG_BYTES + 100
    assert held(peer) == 0


def test_what_is_aborted_does_not_count() -> None:
    peer = sending(0)
    for number in range(50):
        peer.transfer(0, number, b"x" * 5_000, more=True)
        peer.transfer(0, number, b"x" * 100, aborted=True, more=bool(number % 2))
        assert held(peer) == 0
    assert not peer.server.finished


def test_what_is_too_large_is_dropped_and_does_not_count() -> None:
    peer = sending(0, 1)
    peer.recorder.links[0].max_message_size = 1_000
    for _ in range(20):
        peer.transfer(0, 0, b"x" * 900, more=True)
    assert held(peer) == TAG_BYTES
    peer.transfer(0, 0, b"")
    assert held(peer) == 0
    assert peer.recorder.of("too_large") == [("too_large", 0, 0, False, 18_000)]


@pytest.mark.parametrize("closed", [True, False])
def test_a_detached_link_holds_nothing(closed: bool) -> None:
    peer = sending(0, 1)
    for number in range(50):
        peer.transfer(0, number, b"x" * 5_000, more=True)
        peer.send(DETACH, [UInt(0), closed])
        assert held(peer) == 0
        peer.attach(0, receiver=False)
    assert not peer.server.finished


def test_a_link_that_we_detach_holds_nothing_nor_takes_more() -> None:
    peer = sending(0)
    peer.transfer(0, 0, b"x" * 5_000, more=True)
    peer.recorder.links[0].detach("amqp:internal-error", "no more")
    assert held(peer) == 0
    peer.transfer(0, 0, b"x" * 5_000, more=True)
    assert held(peer) == 0
    peer.send(DETACH, [UInt(0), True])
    assert held(peer) == 0


def test_an_ended_session_holds_nothing_and_others_keep_theirs() -> None:
    peer = sending(0, 1, channels=2)
    for channel in (0, 1):
        peer.transfer(0, 0, b"x" * 2_000, more=True, channel=channel)
        peer.transfer(1, 1, b"x" * 2_000, more=True, channel=channel)
    peer.send(END, [], channel=1)
    assert held(peer) == 2 * (2_000 + TAG_BYTES)


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_closed_connection_holds_nothing(is_lost: bool) -> None:
    peer = sending(0, 1)
    peer.transfer(0, 0, b"x" * 2_000, more=True)
    peer.transfer(1, 1, b"x" * 2_000, more=True)
    if is_lost:
        peer.server.abort()
    else:
        peer.send(CLOSE, [])
    assert held(peer) == 0


def test_tags_and_transactions_count_as_well() -> None:
    """A tag may be as long as a frame, on each of 5,000 links."""
    peer = sending(0, 1)
    state = Described(ULong(0x34), [b"t" * 200])
    peer.transfer(0, 0, b"", tag=b"x" * 1_000, more=True)
    peer.transfer(0, 0, b"", tag=b"x" * 1_000, state=state, more=True)
    peer.transfer(0, 0, b"", tag=b"x" * 1_000, state=state, more=True)
    assert held(peer) == 1_200
    peer.transfer(1, 1, b"", tag=b"x" * 9_000, more=True)
    assert peer.server.finished


def test_a_message_of_100_mb_fits() -> None:
    piece = b"x" * 65_000
    frames = 100 * 1024 * 1024 // len(piece)
    peer = Peer(Roomy()).handshake()
    peer.attach(0, receiver=False)
    peer.recorder.links[0].max_message_size = 100 * 1024 * 1024
    for _ in range(frames):
        peer.transfer(0, 0, piece, more=True)
    peer.transfer(0, 0, b"end")
    assert len(peer.recorder.of("transfer")[0][6]) == frames * len(piece) + 3
    assert held(peer) == 0
