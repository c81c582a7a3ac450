"""Delivery states: what a peer says became of a delivery, and what we answer.

A state's bytes enter and an `Outcome` leaves; the constants and functions give states
already encoded, ready for a disposition. Decides nothing about messages.
"""

from __future__ import annotations

from typing import Final

from twinbus.amqp.codec import (
    NULL,
    encode,
    encode_binary,
    encode_list,
    encode_string,
    encode_symbol,
    skip,
)
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.performatives import Fields, descriptor_at

# Kinds of outcome.
KIND_NONE: Final = 0
KIND_RECEIVED: Final = 0x23
KIND_ACCEPTED: Final = 0x24
KIND_REJECTED: Final = 0x25
KIND_RELEASED: Final = 0x26
KIND_MODIFIED: Final = 0x27
KIND_DECLARED: Final = 0x33
_TRANSACTIONAL: Final = 0x34
_ERROR: Final = 0x1D

# States to answer with.
ACCEPTED: Final = b"\x00\x53\x24\x45"
REJECTED: Final = b"\x00\x53\x25\x45"
RELEASED: Final = b"\x00\x53\x26\x45"


class Outcome:
    """A peer's verdict on a delivery; one object serves a whole disposition frame."""

    def __init__(self, kind: int) -> None:
        self.kind = kind
        self.delivery_failed = False
        self.undeliverable_here = False
        # modified: annotations to merge.
        self.annotations: dict[object, object] | None = None
        # rejected: the error.
        self.condition: str | None = None
        self.description: str | None = None
        self.info: dict[object, object] | None = None
        # declared: the new transaction; any other kind: the transaction it belongs to.
        self.txn_id: bytes | None = None

    def is_terminal(self) -> bool:
        """Tell whether the outcome decides the delivery, and does not just report progress."""
        return KIND_ACCEPTED <= self.kind <= KIND_MODIFIED


_PLAIN_ACCEPTED: Final = Outcome(KIND_ACCEPTED)
_NO_OUTCOME: Final = Outcome(KIND_NONE)


def read_outcome(buf: bytes, pos: int, end: int) -> Outcome:
    """Decode the state between `pos` and `end`; no bytes or null is the outcome NONE."""
    if pos >= end or buf[pos] == 0x40:
        return _NO_OUTCOME
    if end - pos == 4 and buf[pos + 1] == 0x53 and buf[pos + 2] == 0x24:
        return _PLAIN_ACCEPTED
    return _read_state(buf, pos, end, False)


def _read_state(buf: bytes, pos: int, end: int, inside_transaction: bool) -> Outcome:
    code, at = descriptor_at(buf, pos)
    fields = Fields(buf, at, end)
    if code == _TRANSACTIONAL and not inside_transaction:
        return _read_transactional(fields)
    outcome = Outcome(code)
    if code == KIND_MODIFIED:
        outcome.delivery_failed = fields.boolean(0, False)
        outcome.undeliverable_here = fields.boolean(1, False)
        if fields.present(2):
            outcome.annotations = fields.mapping(2)
    elif code == KIND_REJECTED:
        if fields.present(0):
            _read_error(buf, fields.start(0), end, outcome)
    elif code == KIND_DECLARED:
        outcome.txn_id = fields.binary(0)
    elif code not in (KIND_RECEIVED, KIND_ACCEPTED, KIND_RELEASED):
        raise DecodeError(f"unknown delivery state 0x{code:x}", pos)
    return outcome


def _read_transactional(fields: Fields) -> Outcome:
    outcome = Outcome(KIND_NONE)
    if fields.present(1):
        start = fields.start(1)
        outcome = _read_state(fields.buf, start, skip(fields.buf, start), True)
    outcome.txn_id = fields.binary(0)
    return outcome


def _read_error(buf: bytes, pos: int, end: int, outcome: Outcome) -> None:
    code, at = descriptor_at(buf, pos)
    if code != _ERROR:
        raise DecodeError("not an error", pos)
    fields = Fields(buf, at, end)
    outcome.condition = fields.text(0)
    outcome.description = fields.text(1)
    if fields.present(2):
        outcome.info = fields.mapping(2)


def error(condition: str, description: str | None, info: dict[object, object] | None) -> bytes:
    """An error, always with its three fields: the Python SDK reads all of them blindly."""
    return b"\x00\x53\x1d" + encode_list(
        [
            encode_symbol(condition),
            NULL if description is None else encode_string(description),
            NULL if info is None else encode(info),
        ]
    )


def rejected(condition: str, description: str, info: dict[object, object] | None = None) -> bytes:
    return b"\x00\x53\x25" + encode_list([error(condition, description, info)])


def modified(
    delivery_failed: bool,
    undeliverable_here: bool,
    annotations: dict[object, object] | None = None,
) -> bytes:
    fields = [encode(delivery_failed), encode(undeliverable_here), encode(annotations)]
    return b"\x00\x53\x27" + encode_list(fields)


def declared(txn_id: bytes) -> bytes:
    return b"\x00\x53\x33" + encode_list([encode_binary(txn_id)])


def transactional(txn_id: bytes, outcome: bytes) -> bytes:
    """The state that says: this outcome, once that transaction commits."""
    return b"\x00\x53\x34" + encode_list([encode_binary(txn_id), outcome])


class CoordinatorRequest:
    """What a transaction controller asks: a new transaction, or the end of one."""

    def __init__(self, is_declare: bool, txn_id: bytes, fail: bool) -> None:
        self.is_declare = is_declare
        self.txn_id = txn_id
        self.fail = fail


def read_coordinator_request(payload: bytes) -> CoordinatorRequest:
    """Decode a message sent to a coordinator: declare or discharge as an amqp-value."""
    pos = 0
    while True:
        section, at = descriptor_at(payload, pos)
        if section == 0x77:
            break
        pos = skip(payload, at)
    code, at = descriptor_at(payload, at)
    if code == 0x31:
        return CoordinatorRequest(True, b"", False)
    if code != 0x32:
        raise DecodeError("neither declare nor discharge", at)
    fields = Fields(payload, at, len(payload))
    return CoordinatorRequest(False, fields.binary(0) or b"", fields.boolean(1, False))
