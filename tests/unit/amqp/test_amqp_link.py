"""Links: attach, credit, deliveries, drain and detach, peer to peer in memory."""

from __future__ import annotations

from typing import Any

import pytest
from amqp_client import (
    ATTACH,
    DETACH,
    FLOW,
    TRANSFER,
    Frame,
    Peer,
    Recorder,
    accepted,
    performative,
    source,
    target,
)

from twinbus.amqp.codec import encode
from twinbus.amqp.framing import frame
from twinbus.amqp.link import MESSAGE_BYTES_MAX, Link
from twinbus.amqp.outcomes import ACCEPTED
from twinbus.amqp.types import Described, Symbol, UByte, UInt, ULong

TAG = b"0123456789abcdef"


def waiting(**more: Any) -> tuple[Peer, Link]:
    """A peer whose receiving link has not been answered yet."""
    peer = Peer(Recorder(answer_attach=False)).handshake()
    peer.attach(0, receiver=True, **more)
    return peer, peer.recorder.links[0]


def sending(credit: int = 0, *, handle: int = 1) -> tuple[Peer, Link]:
    """A peer that sends to us."""
    peer = Peer(Recorder(credit=credit)).handshake()
    peer.attach(handle, receiver=False)
    return peer, peer.recorder.links[0]


def receiving(credit: int = 10) -> tuple[Peer, Link]:
    """A peer that receives from us, with credit given."""
    peer = Peer().handshake()
    peer.attach(1, receiver=True)
    peer.flow(1, credit)
    peer.recorder.calls.clear()
    return peer, peer.recorder.links[0]


def codes(frames: list[Frame]) -> list[int]:
    return [heard.code for heard in frames]


# ---------------------------------------------------------------------------------------
# Attach


def test_what_a_link_tells() -> None:
    peer, link = waiting(
        name="n",
        source=source("q", UInt(0), None, None, None, None, None, {Symbol("f"): "v"}),
        target=target("t"),
        properties={Symbol("p"): 1},
        snd=1,
        rcv=0,
    )
    assert (link.name, link.handle, link.is_sender) == ("n", 0, True)
    assert (link.source.address, link.source.filter) == ("q", {"f": "v"})
    assert (link.target.address, link.is_coordinator) == ("t", False)
    assert (link.snd_settle_mode, link.rcv_settle_mode) == (1, 0)
    assert link.properties == {"p": 1}
    assert not link.attached
    assert link.session.connection is peer.server


def test_modes_left_out_have_their_defaults() -> None:
    peer = Peer(Recorder(answer_attach=False)).handshake()
    peer.send(ATTACH, ["n", UInt(0), True])
    link = peer.recorder.links[0]
    assert (link.snd_settle_mode, link.rcv_settle_mode) == (2, 0)
    assert (link.source.address, link.target.address) == (None, None)
    link.accept()
    answer = peer.read()[0]
    assert answer[5] is None
    assert answer[6] is None


def test_accept_echoes_source_and_target_byte_by_byte() -> None:
    given_source = source("amqps://host/q", UInt(0), Symbol("session-end"), UInt(0), False)
    given_target = target("receiver-link", UInt(0), None)
    peer, link = waiting(source=given_source, target=given_target, rcv=1)
    link.accept()
    data = peer.server.take_output()
    assert encode(given_source) in data
    assert encode(given_target) in data
    assert link.attached


def test_accept_answers_in_the_opposite_role() -> None:
    peer = Peer(Recorder(answer_attach=False)).handshake()
    peer.attach(0, receiver=True, snd=0, rcv=1)
    peer.attach(1, receiver=False)
    for link in peer.recorder.links:
        link.accept(max_message_size=262_144, properties={Symbol("k"): 5})
    ours_sends, ours_receives = peer.read()
    # The Python SDK detaches from a sender without initial-delivery-count.
    assert (ours_sends[2], ours_sends[9]) == (False, 0)
    assert (ours_receives[2], ours_receives[9]) == (True, None)
    assert (ours_sends[3], ours_sends[4]) == (0, 1)
    assert isinstance(ours_sends[4], UByte)
    assert ours_receives[10] == 262_144
    assert isinstance(ours_receives[10], ULong)
    assert ours_receives[13] == {"k": 5}
    assert peer.recorder.links[1].max_message_size == 262_144


@pytest.mark.parametrize("length", [1, 8, 11])
def test_accept_with_another_filter(length: int) -> None:
    """E6: the answer names the session; the address stays as the client wrote it."""
    fields = [None] * 11
    fields[7] = {Symbol("com.microsoft:session-filter"): None}  # type: ignore[call-overload]
    peer, link = waiting(source=source("amqps://host/q", *fields[1:length]))
    link.accept(source_filter={Symbol("com.microsoft:session-filter"): "s1"})
    answered = peer.read()[0][5]
    assert answered.value[0] == "amqps://host/q"
    assert answered.value[7] == {"com.microsoft:session-filter": "s1"}
    assert len(answered.value) == max(length, 8)


def test_echo_has_short_descriptors_whatever_the_peer_wrote() -> None:
    peer = Peer().handshake()
    wide = b"\x00\x80" + (0x28).to_bytes(8, "big") + encode(["q"])
    symbolic = encode(Described(Symbol("amqp:target:list"), ["t"]))
    fields = encode("n") + encode(UInt(0)) + b"\x41\x40\x40" + wide + symbolic
    body = b"\x00\x53\x12\xc0" + bytes((len(fields) + 1, 7)) + fields
    peer.server.receive(frame(0, body), peer.now_ms)
    data = peer.server.take_output()
    assert b"\x00\x53\x28" + encode(["q"]) in data
    assert b"\x00\x53\x29" + encode(["t"]) in data


@pytest.mark.parametrize(
    "more",
    [
        {"source": Described(ULong(0x29), ["q"])},
        {"target": Described(ULong(0x28), ["q"])},
        {"source": Described(ULong(1 << 40), ["q"])},
        {"source": source("q", None, None, None, "dynamic?")},
        {"source": source("q", None, None, None, None, None, None, ["no filter"])},
        {"source": "q"},
    ],
)
def test_ends_that_are_none_are_refused(more: dict[str, Any]) -> None:
    peer = Peer().handshake()
    peer.attach(0, receiver=True, **more)
    assert peer.server.finished
    assert peer.heard[-1][0].value[0] == "amqp:decode-error"


def test_an_address_that_is_no_text_is_none() -> None:
    _, link = waiting(source=source(UInt(5)))  # type: ignore[arg-type]
    assert link.source.address is None


def test_a_coordinator() -> None:
    """E10: a link to the transaction coordinator."""
    peer = Peer().handshake()
    peer.attach(0, receiver=False, target=Described(ULong(0x30), [None]))
    assert peer.recorder.links[0].is_coordinator


def test_refusal_is_attach_without_ends_and_detach_at_once() -> None:
    """S2: the refusal carries condition, text and info."""
    peer, link = waiting(name="n", properties={Symbol("p"): 1})
    link.refuse("amqp:not-found", "no such queue", {Symbol("tracking"): "id"})
    attach, detach = peer.read()
    assert (attach[0], attach[2], attach[5], attach[6], attach[9]) == ("n", False, None, None, 0)
    assert (detach[0], detach[1]) == (0, True)
    assert detach[2].value == ["amqp:not-found", "no such queue", {"tracking": "id"}]
    # Nothing of a refused link is kept but its handle.
    assert link.properties == {}
    assert link.source.address is None
    assert peer.send(DETACH, [UInt(0), True]) == []
    assert peer.recorder.of("detach") == []
    assert peer.server.link_count == 0


def test_a_refused_client_may_take_the_handle_again() -> None:
    """The Python SDK does not answer the detach of a refusal."""
    peer, link = waiting()
    link.refuse("amqp:not-found", "no such queue")
    peer.read()
    peer.attach(0, receiver=True)
    peer.recorder.links[1].accept()
    assert codes(peer.read()) == [ATTACH]
    assert peer.server.link_count == 1


def test_a_handle_in_use_is_refused() -> None:
    peer, _ = receiving()
    peer.attach(1, receiver=True)
    assert peer.heard[-1][0].value[0] == "amqp:session:handle-in-use"


def test_links_of_one_name_live_side_by_side() -> None:
    """proton names its sender and its receiver on a node alike."""
    peer = Peer().handshake()
    peer.attach(0, receiver=True, name="same")
    peer.attach(1, receiver=False, name="same")
    assert [link.attached for link in peer.recorder.links] == [True, True]


def test_an_attach_may_be_answered_late_or_given_up() -> None:
    """E6: waiting for the next session; the client may leave meanwhile."""
    peer, link = waiting()
    assert peer.send(FLOW, [UInt(0), UInt(100), UInt(0), UInt(1), UInt(0), UInt(0), UInt(7)]) == []
    assert peer.recorder.of("flow") == []
    heard = peer.send(DETACH, [UInt(0), True])
    assert codes(heard) == [ATTACH, DETACH]
    assert heard[0][5] is None
    assert peer.recorder.of("detach") == [("detach", 0, True)]
    link.accept()
    link.refuse("a", "b")
    link.detach("a", "b")
    assert peer.read() == []


def test_credit_given_before_the_answer_counts() -> None:
    """proton sends attach and flow in one burst."""
    peer, link = waiting()
    peer.flow(0, 7)
    assert peer.recorder.of("flow") == []
    link.accept()
    assert peer.recorder.of("flow") == [("flow", 0, 7, False)]


# ---------------------------------------------------------------------------------------
# Receiving


def test_a_transfer_arrives() -> None:
    peer, _ = sending(100)
    peer.transfer(1, 5, b"payload", tag=b"t")
    assert peer.recorder.of("transfer") == [("transfer", 1, 5, b"t", 0, False, b"payload", None)]


def test_a_transfer_without_message_format_has_format_zero() -> None:
    peer, _ = sending(100)
    peer.send(TRANSFER, [UInt(1), UInt(0)], payload=b"x")
    assert peer.recorder.of("transfer") == [("transfer", 1, 0, b"", 0, False, b"x", None)]


def test_a_settled_transfer_arrives() -> None:
    """S5"""
    peer, _ = sending(100)
    peer.transfer(1, 0, b"payload", settled=True)
    assert peer.recorder.of("transfer")[0][5] is True


def test_a_transfer_in_a_transaction() -> None:
    """E10"""
    peer, _ = sending(100)
    state = Described(ULong(0x34), [b"txn"])
    peer.transfer(1, 0, b"a", state=state)
    peer.transfer(1, 1, b"b", state=state, more=True)
    peer.transfer(1, 1, b"c")
    calls = peer.recorder.of("transfer")
    assert [call[6:] for call in calls] == [(b"a", b"txn"), (b"bc", b"txn")]


def test_a_message_of_several_frames() -> None:
    peer, link = sending(100)
    peer.transfer(1, 0, b"one ", more=True)
    peer.send(TRANSFER, [UInt(1), None, None, None, None, True], payload=b"two ")
    peer.send(TRANSFER, [UInt(1)], payload=b"three")
    assert [call[6] for call in peer.recorder.of("transfer")] == [b"one two three"]
    assert (link.delivery_count, link.credit) == (1, 99)


def test_settled_in_any_frame_settles() -> None:
    peer, _ = sending(100)
    peer.transfer(1, 0, b"a", more=True)
    peer.transfer(1, 0, b"b", settled=True)
    assert peer.recorder.of("transfer")[0][5] is True


def test_an_aborted_message_is_forgotten() -> None:
    peer, link = sending(100)
    peer.transfer(1, 0, b"a", more=True)
    peer.transfer(1, 0, b"", aborted=True)
    peer.transfer(1, 1, b"", aborted=True)
    peer.transfer(1, 2, b"b")
    assert [call[6] for call in peer.recorder.of("transfer")] == [b"b"]
    assert link.delivery_count == 3


def test_messages_do_not_mix() -> None:
    peer, _ = sending(100)
    peer.transfer(1, 0, b"a", more=True)
    peer.transfer(1, 1, b"b")
    assert peer.heard[-1][0].value[0] == "amqp:not-allowed"
    assert peer.recorder.of("transfer") == []


def test_a_first_frame_without_delivery_id_is_refused() -> None:
    peer, _ = sending(100)
    peer.send(TRANSFER, [UInt(1)], payload=b"x")
    assert peer.heard[-1][0].value[0] == "amqp:invalid-field"


@pytest.mark.parametrize("frames", [1, 2, 20])
def test_a_message_too_large_passes_by(frames: int) -> None:
    """E4: told once, with its size; nothing of it is kept, and the link goes on."""
    peer = Peer(Recorder(answer_attach=False), max_frame_size=65536).handshake()
    peer.attach(1, receiver=False)
    link = peer.recorder.links[0]
    link.accept(max_message_size=1000)
    link.grant(10)
    for i in range(frames):
        peer.transfer(1, 0, b"x" * (2000 // frames), more=i < frames - 1)
    assert peer.recorder.of("too_large") == [("too_large", 1, 0, False, 2000)]
    assert peer.recorder.of("transfer") == []
    peer.transfer(1, 1, b"x" * 1000)
    assert len(peer.recorder.of("transfer")) == 1


def test_the_limit_before_and_without_a_word_of_the_broker() -> None:
    _, link = sending(100)
    assert link.max_message_size == MESSAGE_BYTES_MAX


def test_credit_is_topped_up_when_half_is_used() -> None:
    peer, link = sending(10)
    flow = peer.heard[-1]
    assert (flow.code, flow[4], flow[5], flow[6]) == (FLOW, 1, 0, 10)
    for i in range(4):
        assert peer.transfer(1, i, b"x") == []
    flow = peer.transfer(1, 4, b"x")[0]
    assert (flow[5], flow[6]) == (5, 10)
    # Every flow says what was seen of the session, or rhea never sends again.
    assert (flow[0], flow[1], flow[2]) == (5, 5000, 0)
    assert link.credit == 10


def test_credit_can_be_held_back() -> None:
    peer, link = sending(10)
    link.hold_credit = True
    for i in range(10):
        assert peer.transfer(1, i, b"x") == []
    assert link.credit == 0
    link.hold_credit = False
    link.grant(10)
    flow = peer.read()[0]
    assert (flow[5], flow[6]) == (10, 10)


def test_more_transfers_than_credit_are_taken() -> None:
    """The Python SDK gives itself credit when it has none left."""
    peer, link = sending(2)
    link.hold_credit = True
    for i in range(5):
        peer.transfer(1, i, b"x")
    assert len(peer.recorder.of("transfer")) == 5
    assert link.credit == 0
    assert not peer.server.finished


def test_credit_that_a_sender_claims_is_ignored() -> None:
    peer, link = sending(10)
    peer.flow(1, 10_000)
    assert link.credit == 10
    assert peer.recorder.of("flow") == []


def test_a_sender_s_delivery_count_may_start_anywhere() -> None:
    peer = Peer(Recorder(credit=2)).handshake()
    fields = ["n", UInt(1), False, None, None, source("s"), target("t"), None, None]
    peer.send(ATTACH, [*fields, UInt(2**32 - 1)])
    assert peer.heard[-1][5] == 2**32 - 1
    assert peer.transfer(1, 0, b"x")[0][5] == 0


def test_a_transfer_without_an_answered_attach_is_refused() -> None:
    peer = Peer(Recorder(answer_attach=False)).handshake()
    peer.attach(1, receiver=False)
    peer.transfer(1, 0, b"x")
    assert peer.heard[-1][0].value[0] == "amqp:not-allowed"


def test_a_transfer_on_a_link_that_we_send_on_is_refused() -> None:
    peer, _ = receiving()
    peer.transfer(1, 0, b"x")
    assert peer.heard[-1][0].value[0] == "amqp:not-allowed"


# ---------------------------------------------------------------------------------------
# Sending


def test_a_delivery_leaves() -> None:
    peer, link = receiving()
    delivery_id = link.deliver(TAG, 0, False, b"head ", b"body", "context")
    sent = peer.read()[0]
    assert sent.fields == [1, delivery_id, TAG, 0, False, False]
    assert sent.payload == b"head body"
    assert (link.credit, link.delivery_count) == (9, 1)


@pytest.mark.parametrize("tag", [b"", b"short", b"x" * 32])
def test_tags_of_any_length(tag: bytes) -> None:
    """R1: a settled delivery has an empty tag."""
    peer, link = receiving()
    link.deliver(tag, 0x80013700, True, b"head ", b"body", None)
    sent = peer.read()[0]
    assert sent.fields == [1, 0, tag, 0x80013700, True, False]
    assert sent.payload == b"head body"


def test_a_delivery_needs_credit_and_an_open_link() -> None:
    peer, link = receiving(1)
    link.deliver(TAG, 0, True, b"", b"", None)
    with pytest.raises(AssertionError):
        link.deliver(TAG, 0, True, b"", b"", None)
    peer.flow(1, 1, count=1, window=0)
    with pytest.raises(AssertionError):
        link.deliver(TAG, 0, True, b"", b"", None)
    link.detach(None)
    with pytest.raises(AssertionError):
        link.deliver(TAG, 0, True, b"", b"", None)


def test_credit_counts_from_what_the_peer_has_seen() -> None:
    peer, link = receiving(10)
    for _ in range(4):
        link.deliver(TAG, 0, True, b"", b"", None)
    peer.flow(1, 10, count=1)
    assert link.credit == 7
    peer.flow(1, 2, count=1)
    assert link.credit == 0
    peer.flow(1, 0, count=4)
    assert link.credit == 0
    fields: list[Any] = [UInt(0), UInt(100), UInt(0), UInt(100), UInt(1), None, UInt(9)]
    peer.send(FLOW, fields)
    assert link.credit == 5
    peer.send(FLOW, fields[:5])
    assert link.credit == 5


def test_delivery_count_wraps() -> None:
    peer, link = receiving(10)
    link.delivery_count = 2**32 - 2
    peer.flow(1, 10, count=2**32 - 2)
    for _ in range(4):
        link.deliver(TAG, 0, True, b"", b"", None)
    assert link.delivery_count == 2
    peer.flow(1, 10, count=2**32 - 1)
    assert link.credit == 7


def test_drain_uses_the_credit_up_and_is_always_answered() -> None:
    peer, link = receiving(10)
    link.deliver(TAG, 0, True, b"", b"", None)
    peer.flow(1, 9, count=1, drain=True)
    assert peer.recorder.of("flow") == [("flow", 1, 9, True)]
    link.drained()
    flow = peer.read()[-1]
    assert (flow[5], flow[6], flow[8]) == (10, 0, True)
    assert not link.drain
    peer.flow(1, 0, count=10, drain=True)
    link.drained()
    flow = peer.read()[-1]
    assert (flow[5], flow[6], flow[8]) == (10, 0, True)


def test_an_echo_is_answered() -> None:
    peer, _ = receiving(10)
    flow = peer.flow(1, 5, echo=True)[0]
    assert (flow[4], flow[5], flow[6], flow[8]) == (1, 0, 5, False)


# ---------------------------------------------------------------------------------------
# Detach


@pytest.mark.parametrize("closed", [True, False])
def test_a_peer_s_detach_is_answered_with_a_close(closed: bool) -> None:
    """The delivery-ids of the link are forgotten: a late disposition finds nothing."""
    peer, link = receiving()
    link.deliver(TAG, 0, False, b"", b"x", "first")
    link.deliver(TAG, 0, False, b"", b"x", "second")
    peer.read()
    heard = peer.send(DETACH, [UInt(1), closed])
    assert [(reply.code, reply[1]) for reply in heard] == [(DETACH, True)]
    assert peer.recorder.of("detach") == [("detach", 1, closed)]
    assert link.take_unsettled() == ["first", "second"]
    assert link.take_unsettled() == []
    peer.disposition(0, 1, settled=False, state=accepted())
    assert peer.recorder.of("outcome") == []
    link.session.settle_outgoing(0, 1, ACCEPTED)
    assert peer.read() == []


def test_detach_of_an_unknown_handle_is_ignored() -> None:
    peer, _ = receiving()
    assert peer.send(DETACH, [UInt(9), True]) == []
    assert not peer.server.finished


def test_a_detach_that_cannot_be_read_still_ends_the_link() -> None:
    """The link is reported over, with the connection, when its detach is garbled."""
    peer, _ = receiving()
    peer.send(DETACH, [UInt(1), "closed?"])
    assert peer.heard[-1][0].value[0] == "amqp:decode-error"
    assert peer.recorder.of("detach") == [("detach", 1, True)]


def test_detach_by_us() -> None:
    peer, link = receiving()
    link.deliver(TAG, 0, False, b"", b"x", "context")
    peer.read()
    link.detach("amqp:link:detach-forced", "idle", {Symbol("k"): 1})
    detach = peer.read()[0]
    assert (detach[0], detach[1]) == (1, True)
    assert detach[2].value == ["amqp:link:detach-forced", "idle", {"k": 1}]
    assert link.take_unsettled() == ["context"]
    assert not link.attached
    # What crosses our detach on the wire is swallowed.
    assert peer.flow(1, 10) == []
    assert link.credit == 0
    assert peer.send(DETACH, [UInt(1), True]) == []
    assert peer.recorder.of("detach") == []


def test_transfers_that_cross_our_detach_are_swallowed() -> None:
    peer, link = sending(10)
    link.detach(None)
    assert peer.read()[0][2] is None
    assert peer.transfer(1, 0, b"x") == []
    assert peer.recorder.of("transfer") == []
    assert not peer.server.finished


def test_a_link_that_is_over_takes_late_answers() -> None:
    peer, link = sending(10)
    peer.send(DETACH, [UInt(1), True])
    link.grant(10)
    link.detach("a", "b")
    assert peer.read() == []
    peer, link = receiving(10)
    peer.send(DETACH, [UInt(1), True])
    link.drained()
    assert peer.read() == []


def test_the_end_of_the_connection_does_not_report_links_twice() -> None:
    peer, link = receiving()
    link.detach(None)
    peer.server.abort()
    assert peer.recorder.of("detach") == []
    peer, _ = receiving()
    peer.write(performative(DETACH, [UInt(1), True]))
    peer.server.abort()
    assert len(peer.recorder.of("detach")) == 1
