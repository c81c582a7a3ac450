"""Sessions: windows both ways, messages in several frames, dispositions in ranges."""

from __future__ import annotations

import pytest
from amqp_client import (
    DETACH,
    DISPOSITION,
    FLOW,
    OPEN,
    TRANSFER,
    Frame,
    Peer,
    Recorder,
    accepted,
    performative,
)

from twinbus.amqp.connection import EFFORT_MAX
from twinbus.amqp.framing import AMQP_HEADER
from twinbus.amqp.link import Link
from twinbus.amqp.outcomes import ACCEPTED, KIND_ACCEPTED, KIND_MODIFIED, Outcome
from twinbus.amqp.session import INCOMING_WINDOW
from twinbus.amqp.types import Described, UInt, ULong

TAG = b"0123456789abcdef"
RECEIVED = Described(ULong(0x23), [UInt(0), ULong(0)])
TRANSACTIONAL = Described(ULong(0x34), [b"t", accepted()])
ECHO = [UInt(0), UInt(9), UInt(0), UInt(9), None, None, None, None, False, True]


def joined(*, window: int = 5000, frame_size: int = 65536, links: int = 1) -> tuple[Peer, Link]:
    """A peer with receiving links that gave plenty of credit."""
    peer = Peer()
    peer.write(AMQP_HEADER)
    peer.send(OPEN, ["client", None, UInt(frame_size)])
    peer.begin(window=window)
    for handle in range(links):
        peer.attach(handle, receiver=True)
        peer.flow(handle, 1000, window=window)
    peer.recorder.calls.clear()
    return peer, peer.recorder.links[0]


def deliver(link: Link, context: object = None, body: bytes = b"x") -> int:
    return link.deliver(TAG, 0, False, b"", body, context)


# ---------------------------------------------------------------------------------------
# The peer's window


def test_delivery_ids_are_consecutive_over_all_links() -> None:
    """rhea throws on a gap."""
    peer, _ = joined(links=3)
    ids = [deliver(link) for link in peer.recorder.links * 2]
    assert ids == [0, 1, 2, 3, 4, 5]


def test_the_peer_s_window_is_respected() -> None:
    peer, link = joined(window=2)
    assert link.session.can_send()
    deliver(link)
    deliver(link)
    assert not link.session.can_send()
    peer.flow(0, 1000, seen=1, window=2)
    assert link.session.can_send()
    deliver(link)
    assert not link.session.can_send()


def test_all_senders_hear_of_a_window_that_reopened() -> None:
    peer, link = joined(window=1, links=3)
    peer.attach(7, receiver=False)
    deliver(link)
    peer.recorder.calls.clear()
    peer.send(FLOW, [UInt(1), UInt(5), UInt(0), UInt(5)])
    assert [call[1] for call in peer.recorder.of("flow")] == [0, 1, 2]
    peer.recorder.calls.clear()
    peer.flow(1, 10, seen=1)
    assert [call[1] for call in peer.recorder.of("flow")] == [1]


def test_a_flow_of_a_peer_that_has_not_seen_our_begin() -> None:
    peer, link = joined(window=3)
    deliver(link)
    peer.send(FLOW, [None, UInt(3), UInt(0), UInt(5)])
    assert link.session.remote_incoming_window == 2


def test_a_flow_for_an_unknown_handle_counts_for_the_session() -> None:
    peer, link = joined(window=1)
    peer.flow(99, 10, window=50)
    assert link.session.remote_incoming_window == 50
    assert not peer.server.finished


def test_a_session_s_echo_is_answered() -> None:
    peer, link = joined()
    deliver(link)
    peer.read()
    flow = peer.send(
        FLOW, [UInt(0), UInt(9), UInt(0), UInt(9), None, None, None, None, False, True]
    )[0]
    assert flow.fields == [0, INCOMING_WINDOW, 1, 5000]


# ---------------------------------------------------------------------------------------
# Our window


def test_our_window_is_topped_up_unasked() -> None:
    peer = Peer(Recorder(credit=0)).handshake()
    peer.attach(0, receiver=False)
    flows: list[Frame] = []
    for i in range(INCOMING_WINDOW):
        flows += peer.transfer(0, i, b"")
    assert [flow.fields for flow in flows] == [
        [INCOMING_WINDOW // 2, INCOMING_WINDOW, 0, 5000],
        [INCOMING_WINDOW, INCOMING_WINDOW, 0, 5000],
    ]


def test_transfer_ids_wrap() -> None:
    peer = Peer()
    peer.write(AMQP_HEADER)
    peer.send(OPEN, ["client"])
    peer.send(0x11, [None, UInt(2**32 - 1), UInt(10), UInt(10)])
    peer.attach(0, receiver=False)
    peer.transfer(0, 0, b"")
    assert peer.server.sessions[0].next_incoming_id == 0


# ---------------------------------------------------------------------------------------
# Messages in several frames


@pytest.mark.parametrize("length", [400, 512, 513, 1000, 5000])
@pytest.mark.parametrize("settled", [True, False])
def test_large_messages_are_cut_to_the_peer_s_frames(length: int, settled: bool) -> None:
    peer, link = joined(frame_size=512)
    payload = bytes(i % 251 for i in range(length))
    link.deliver(TAG, 0, settled, payload[:100], payload[100:], None)
    data = peer.server.take_output()
    frames = sizes(data)
    assert max(frames) <= 512
    if length >= 1000:
        assert frames[0] == 512, "frames are filled"
    peer.server.output.append(data)
    heard = peer.read()
    assert b"".join([transfer.payload for transfer in heard]) == payload
    assert [transfer[5] for transfer in heard] == [True] * (len(heard) - 1) + [False]
    assert {transfer[4] for transfer in heard} == {settled}
    assert (heard[0][1], heard[0][2]) == (0, TAG)


def sizes(data: bytes) -> list[int]:
    found: list[int] = []
    pos = 0
    while pos < len(data):
        found.append(int.from_bytes(data[pos : pos + 4], "big"))
        pos += found[-1]
    return found


def test_the_rest_waits_for_the_window() -> None:
    peer, link = joined(frame_size=512, window=2)
    payload = b"y" * 2000
    deliver(link, "large", payload)
    heard = peer.read()
    assert len(heard) == 2
    assert not link.session.can_send()
    heard += peer.flow(0, 1000, seen=2, window=1)
    assert len(heard) == 3
    assert peer.recorder.of("flow")[-1] == ("flow", 0, 999, False)
    assert not link.session.can_send()
    peer.recorder.calls.clear()
    heard += peer.flow(0, 1000, seen=3, window=10)
    assert b"".join([transfer.payload for transfer in heard]) == payload
    assert heard[-1][5] is False
    assert link.session.can_send()
    assert link.session.remote_incoming_window == 10 - (len(heard) - 3)


def test_the_rest_of_a_detached_link_is_dropped() -> None:
    peer, link = joined(frame_size=512, window=1, links=2)
    deliver(link, "large", b"y" * 2000)
    peer.read()
    peer.send(DETACH, [UInt(0), True])
    assert link.take_unsettled() == ["large"]
    assert [heard.code for heard in peer.flow(1, 10, seen=1, window=10)] == []
    assert link.session.can_send()


def test_another_link_s_end_leaves_the_rest_alone() -> None:
    peer, link = joined(frame_size=512, window=1, links=2)
    deliver(link, "large", b"y" * 600)
    peer.read()
    peer.send(DETACH, [UInt(1), True])
    assert [heard.code for heard in peer.flow(0, 10, seen=1, window=10)] == [TRANSFER]


# ---------------------------------------------------------------------------------------
# Dispositions


def outcomes(peer: Peer) -> list[tuple[object, int, bool]]:
    return [(call[1], call[2], call[3]) for call in peer.recorder.of("outcome")]


def test_settled_outcomes_are_forgotten_at_once() -> None:
    """R4, R5"""
    peer, link = joined()
    deliver(link, "a")
    peer.disposition(0, None, settled=True, state=accepted())
    assert outcomes(peer) == [("a", 0, True)]
    assert peer.recorder.calls[-1] == ("outcomes_end", 0)
    peer.disposition(0, None, settled=True, state=accepted())
    assert len(outcomes(peer)) == 1
    assert link.session.owners == {}


def test_unsettled_outcomes_wait_for_our_answer() -> None:
    """R5: every settlement is answered."""
    peer, link = joined()
    deliver(link, "a")
    peer.read()
    assert peer.disposition(0, 0, settled=False, state=accepted()) == []
    assert outcomes(peer) == [("a", 0, False)]
    link.session.settle_outgoing(0, 0, ACCEPTED)
    answer = peer.read()[0]
    assert answer.code == DISPOSITION
    assert answer.fields == [False, 0, 0, True, accepted()]
    peer.disposition(0, 0, settled=False, state=accepted())
    assert len(outcomes(peer)) == 1


def test_an_outcome_is_told_once() -> None:
    """R5: a repeated settlement must not overtake the answer to the first."""
    peer, link = joined()
    deliver(link, "a")
    deliver(link, "b")
    for _ in range(2):
        peer.disposition(0, 1, settled=False, state=accepted())
    assert outcomes(peer) == [("a", 0, False), ("b", 1, False)]
    # A peer that settles by itself after all has nothing more to say, nor have we.
    peer.disposition(0, 0, settled=True, state=accepted())
    assert len(outcomes(peer)) == 2
    link.session.settle_outgoing(0, 0, ACCEPTED)
    assert peer.read() == []
    link.session.settle_outgoing(1, 1, ACCEPTED)
    assert [heard.code for heard in peer.read()] == [DISPOSITION]
    assert link.session.decided == set()


def test_progress_decides_nothing_and_is_not_told() -> None:
    peer, link = joined()
    deliver(link, "a")
    for state in (RECEIVED, None, accepted()):
        peer.disposition(0, 0, settled=False, state=state)
    assert [call[4].kind for call in peer.recorder.of("outcome")] == [0, KIND_ACCEPTED]
    # In a transaction, or to end the delivery, it is.
    peer.disposition(0, 0, settled=True, state=RECEIVED)
    assert link.session.owners == {}
    deliver(link, "b")
    peer.disposition(1, 1, settled=False, state=Described(ULong(0x34), [b"t", RECEIVED]))
    assert len(outcomes(peer)) == 3


def test_what_is_decided_otherwise_is_not_told_again() -> None:
    """The handler knows why: it was refused, say, and waits for the disk."""
    peer, link = joined()
    deliver(link, "a")
    for _ in range(2):
        peer.disposition(0, 0, settled=False, state=TRANSACTIONAL)
        link.session.decide(0)
    assert len(outcomes(peer)) == 1
    link.session.settle_outgoing(0, 0, ACCEPTED)
    link.session.decide(0)
    assert link.session.decided == set()


# ---------------------------------------------------------------------------------------
# Frames that cost much


def wide(state: object, first: int = 0, *, settled: bool = False) -> bytes:
    return performative(
        DISPOSITION,
        [True, UInt(first), UInt(2**32 - 1 if not first else first - 1), settled, state],
    )


def test_progress_of_everything_costs_nothing() -> None:
    peer, link = joined()
    for i in range(1000):
        deliver(link, i)
    peer.server.receive(wide(RECEIVED) * 1000, peer.now_ms)
    assert not peer.server.is_weary


@pytest.mark.parametrize("state", [TRANSACTIONAL, None, accepted()])
def test_wide_dispositions_are_interrupted_and_go_on(state: object) -> None:
    peer, link = joined(links=2)
    for i in range(1000):
        deliver(link, i)
    peer.read()
    frames = 35
    # The last bytes are cut off, and come later.
    data = wide(state) * frames + performative(FLOW, ECHO)
    peer.server.receive(data[:-5], peer.now_ms)
    turns = 1
    while peer.server.is_interrupted:
        told = len(outcomes(peer))
        peer.server.receive(b"", peer.now_ms)
        assert len(outcomes(peer)) - told <= EFFORT_MAX + 1000
        turns += 1
    assert turns == 1 + frames * 1000 // (EFFORT_MAX + 1000)
    assert len(outcomes(peer)) == (1000 if state == accepted() else frames * 1000)
    # Bytes that arrive meanwhile come behind.
    assert [heard.code for heard in peer.write(data[-5:])] == [FLOW]


def test_what_arrives_during_an_interruption_comes_behind() -> None:
    peer, link = joined()
    for i in range(1000):
        deliver(link, i)
    peer.server.receive(wide(TRANSACTIONAL) * 12, peer.now_ms)
    assert len(outcomes(peer)) == 11_000
    peer.write(wide(accepted(), settled=True))
    assert len(outcomes(peer)) == 13_000
    assert not peer.server.is_interrupted
    assert link.session.owners == {}


def test_a_connection_that_ends_is_not_interrupted() -> None:
    peer, link = joined()
    for i in range(1000):
        deliver(link, i)
    peer.server.receive(wide(TRANSACTIONAL) * 12, peer.now_ms)
    assert peer.server.is_interrupted
    peer.server.abort()
    assert not peer.server.is_interrupted


def test_single_settlements_are_never_interrupted() -> None:
    peer, link = joined()
    for i in range(1000):
        deliver(link, i)
    one = performative(DISPOSITION, [True, UInt(0), None, False, TRANSACTIONAL])
    peer.server.receive(one * 20_000, peer.now_ms)
    assert len(outcomes(peer)) == 20_000


def test_a_window_that_opens_for_many_links_costs_as_well() -> None:
    peer, _ = joined(links=500)
    shut = performative(FLOW, [UInt(0), UInt(0), UInt(0), UInt(5)])
    opened = performative(FLOW, [UInt(0), UInt(5), UInt(0), UInt(5)])
    peer.server.receive((shut + opened) * 25, peer.now_ms)
    assert peer.server.is_interrupted
    peer.server.receive(b"", peer.now_ms)
    assert len(peer.recorder.of("flow")) == 25 * 500


def test_an_outcome_in_a_transaction_may_be_followed_by_another() -> None:
    """E10: after a rollback the delivery is open again."""
    peer, link = joined()
    deliver(link, "a")
    peer.disposition(0, 0, settled=False, state=Described(ULong(0x34), [b"t", accepted()]))
    peer.disposition(0, 0, settled=False, state=accepted())
    assert [call[4].txn_id for call in peer.recorder.of("outcome")] == [b"t", None]


def test_the_end_of_a_link_forgets_what_was_decided() -> None:
    peer, link = joined()
    deliver(link, "a")
    peer.disposition(0, 0, settled=False, state=accepted())
    peer.send(DETACH, [UInt(0), True])
    assert link.session.decided == set()
    assert link.take_unsettled() == ["a"]


def test_a_range_shares_one_outcome() -> None:
    peer, _ = joined(links=2)
    for i in range(10):
        deliver(peer.recorder.links[i % 2], f"m{i}")
    state = Described(ULong(0x27), [True, False])
    peer.disposition(2, 5, settled=True, state=state)
    calls = peer.recorder.of("outcome")
    assert [call[1] for call in calls] == ["m2", "m3", "m4", "m5"]
    assert len({id(call[4]) for call in calls}) == 1
    assert calls[0][4].kind == KIND_MODIFIED
    assert peer.recorder.of("outcomes_end") == [("outcomes_end", 0)]


def test_a_range_of_everything_does_not_hang() -> None:
    peer, link = joined()
    for i in range(5):
        deliver(link, i)
    peer.disposition(0, 2**32 - 1, settled=True, state=accepted())
    assert [found[0] for found in outcomes(peer)] == [0, 1, 2, 3, 4]
    peer.disposition(0, 2**32 - 1, settled=True, state=accepted())
    assert len(outcomes(peer)) == 5


def test_ranges_with_holes_and_beyond_the_end() -> None:
    peer, link = joined()
    for i in range(6):
        deliver(link, i)
    peer.disposition(1, 1, settled=True, state=accepted())
    peer.disposition(3, 3, settled=True, state=accepted())
    peer.recorder.calls.clear()
    peer.disposition(0, 3, settled=True, state=accepted())
    assert [found[0] for found in outcomes(peer)] == [0, 2]
    peer.disposition(4, 900, settled=True, state=accepted())
    assert [found[0] for found in outcomes(peer)] == [0, 2, 4, 5]


def test_ranges_wrap_around() -> None:
    peer, link = joined()
    link.session.next_delivery_id = 2**32 - 2
    assert [deliver(link, i) for i in range(5)] == [2**32 - 2, 2**32 - 1, 0, 1, 2]
    peer.disposition(2**32 - 1, 1, settled=True, state=accepted())
    assert [found[0] for found in outcomes(peer)] == [1, 2, 3]


def test_our_answer_may_cover_a_range() -> None:
    peer, link = joined()
    for i in range(4):
        deliver(link, i)
    peer.read()
    link.session.settle_outgoing(0, 2, ACCEPTED)
    assert peer.read()[0].fields[1:3] == [0, 2]
    assert list(link.session.owners) == [3]


def test_our_answer_leaves_out_what_is_settled_already() -> None:
    peer, _ = joined(links=2)
    for i in range(5):
        deliver(peer.recorder.links[i == 2], i)
    peer.read()
    peer.send(DETACH, [UInt(1), True])
    link = peer.recorder.links[0]
    link.session.settle_outgoing(0, 9, ACCEPTED)
    assert [answer.fields[1:3] for answer in peer.read()] == [[0, 1], [3, 4]]
    assert link.session.owners == {}


def test_a_disposition_without_state() -> None:
    peer, link = joined()
    deliver(link, "a")
    peer.send(DISPOSITION, [True, UInt(0), None, True])
    assert peer.recorder.of("outcome")[0][4].kind == 0


def test_a_sender_s_disposition_is_ignored() -> None:
    peer, link = joined()
    deliver(link, "a")
    peer.send(DISPOSITION, [False, UInt(0), None, True, accepted()])
    assert peer.recorder.calls == []


def test_a_handler_may_answer_inside_the_outcome() -> None:
    class Prompt(Recorder):
        def on_outcome(
            self, context: object, delivery_id: int, settled: bool, outcome: Outcome
        ) -> None:
            super().on_outcome(context, delivery_id, settled, outcome)
            assert isinstance(context, Link)
            context.session.settle_outgoing(delivery_id, delivery_id, ACCEPTED)
            if delivery_id == 1:
                context.detach("amqp:link:detach-forced", "enough")

    peer = Peer(Prompt()).handshake()
    peer.attach(0, receiver=True)
    peer.flow(0, 100)
    link = peer.recorder.links[0]
    for _ in range(4):
        deliver(link, link)
    peer.read()
    heard = peer.disposition(0, 2**32 - 1, settled=False, state=accepted())
    assert [reply.code for reply in heard] == [DISPOSITION, DISPOSITION, DETACH]
    assert len(link.take_unsettled()) == 2


def test_what_we_received_is_settled_in_ranges() -> None:
    """S1, S3: outcomes may come in any order and together."""
    peer = Peer().handshake()
    peer.attach(0, receiver=False)
    session = peer.recorder.links[0].session
    session.settle_incoming(5, 9, ACCEPTED)
    session.settle_incoming(1, 1, ACCEPTED)
    answers = peer.read()
    assert [answer.fields[:4] for answer in answers] == [
        [True, 5, 9, True],
        [True, 1, 1, True],
    ]
    assert answers[0][4].descriptor == KIND_ACCEPTED


def test_an_ended_session_takes_late_answers() -> None:
    peer, link = joined()
    deliver(link, "a")
    peer.read()
    peer.send(0x17, [])
    link.session.settle_incoming(0, 0, ACCEPTED)
    link.session.settle_outgoing(0, 0, ACCEPTED)
    assert peer.read() == []
    assert link.take_unsettled() == ["a"]


def test_sessions_are_independent() -> None:
    peer = Peer().handshake()
    peer.begin(1)
    for channel in (0, 1):
        peer.attach(0, receiver=True, channel=channel)
        peer.flow(0, 5, channel=channel)
    first, second = peer.recorder.links
    assert (deliver(first, "a"), deliver(second, "b")) == (0, 0)
    assert [heard.channel for heard in peer.read()] == [0, 1]
    peer.disposition(0, 0, settled=True, state=accepted(), channel=1)
    assert outcomes(peer) == [("b", 0, True)]
