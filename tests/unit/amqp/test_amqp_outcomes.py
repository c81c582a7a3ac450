"""Delivery states both ways, and what a transaction controller asks."""

from __future__ import annotations

import pytest

from twinbus.amqp.codec import decode_whole, encode
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.outcomes import (
    ACCEPTED,
    KIND_ACCEPTED,
    KIND_DECLARED,
    KIND_MODIFIED,
    KIND_NONE,
    KIND_RECEIVED,
    KIND_REJECTED,
    KIND_RELEASED,
    REJECTED,
    RELEASED,
    Outcome,
    declared,
    error,
    modified,
    read_coordinator_request,
    read_outcome,
    rejected,
    transactional,
)
from twinbus.amqp.types import Described, Int, Symbol, UInt, ULong


def read(state: bytes) -> Outcome:
    return read_outcome(state, 0, len(state))


def test_plain_outcomes() -> None:
    kinds = {ACCEPTED: KIND_ACCEPTED, REJECTED: KIND_REJECTED, RELEASED: KIND_RELEASED}
    for state, kind in kinds.items():
        assert read(state).kind == kind
    received = encode(Described(ULong(0x23), [UInt(0), ULong(0)]))
    assert read(received).kind == KIND_RECEIVED
    assert read(b"").kind == KIND_NONE
    assert read(b"\x40").kind == KIND_NONE


def test_accepted_in_long_and_symbolic_spelling() -> None:
    assert read(b"\x00\x53\x24\xc0\x01\x00").kind == KIND_ACCEPTED
    assert read(encode(Described(Symbol("amqp:accepted:list"), []))).kind == KIND_ACCEPTED


def test_modified() -> None:
    """R4: abandon and defer, with properties to change."""
    outcome = read(modified(True, True, {Symbol("a"): Int(1)}))
    assert outcome.kind == KIND_MODIFIED
    assert (outcome.delivery_failed, outcome.undeliverable_here) == (True, True)
    assert outcome.annotations == {"a": 1}
    bare = read(b"\x00\x53\x27\x45")
    assert (bare.delivery_failed, bare.undeliverable_here, bare.annotations) == (False, False, None)


def test_rejected() -> None:
    """R4, S2: an error with condition, description and info."""
    outcome = read(rejected("com.microsoft:dead-letter", "because", {Symbol("Reason"): "why"}))
    assert outcome.kind == KIND_REJECTED
    assert (outcome.condition, outcome.description) == ("com.microsoft:dead-letter", "because")
    assert outcome.info == {"Reason": "why"}
    told = read(rejected("a", "b"))
    assert (told.condition, told.info) == ("a", None)
    bare = read(REJECTED)
    assert (bare.condition, bare.description, bare.info) == (None, None, None)


def test_errors_have_three_fields() -> None:
    """The Python SDK reads all three without looking how many there are."""
    for written in (error("a", None, None), error("a", "b", {})):
        value = decode_whole(written)
        assert isinstance(value, Described)
        assert isinstance(value.value, list)
        assert len(value.value) == 3


def test_transactional_state() -> None:
    """E10: an outcome inside a transaction."""
    outcome = read(transactional(b"t", ACCEPTED))
    assert (outcome.kind, outcome.txn_id) == (KIND_ACCEPTED, b"t")
    # The outcome of a plain disposition must not remember the transaction.
    assert read(ACCEPTED).txn_id is None
    alone = read(encode(Described(ULong(0x34), [b"t"])))
    assert (alone.kind, alone.txn_id) == (KIND_NONE, b"t")
    assert read(declared(b"new")).kind == KIND_DECLARED
    assert read(declared(b"new")).txn_id == b"new"


@pytest.mark.parametrize(
    "state",
    [
        Described(ULong(0x99), []),
        Described(ULong(0x27), ["no boolean"]),
        Described(ULong(0x27), [None, None, ["no map"]]),
        Described(ULong(0x25), ["no error"]),
        Described(ULong(0x25), [Described(ULong(0x1E), [])]),
        Described(ULong(0x34), [b"t", Described(ULong(0x34), [b"u"])]),
        [],
    ],
)
def test_hostile_states_are_refused(state: object) -> None:
    with pytest.raises(DecodeError):
        read(encode(state))


def test_coordinator_requests() -> None:
    """E10: declare and discharge arrive as amqp-value messages."""
    header = encode(Described(ULong(0x70), [True]))

    def message(request: object) -> bytes:
        return header + encode(Described(ULong(0x77), request))

    declare = read_coordinator_request(message(Described(ULong(0x31), [])))
    assert (declare.is_declare, declare.txn_id) == (True, b"")
    discharge = read_coordinator_request(message(Described(ULong(0x32), [b"t", True])))
    assert (discharge.is_declare, discharge.txn_id, discharge.fail) == (False, b"t", True)
    for wrong in (Described(ULong(0x33), []), None):
        with pytest.raises(DecodeError):
            read_coordinator_request(message(wrong))
    with pytest.raises(DecodeError):
        read_coordinator_request(header)
