"""The one table of errors (S2)."""

from __future__ import annotations

from twinbus.core import errors
from twinbus.core.errors import BusError, ErrorKind, entity_not_found, tracked


def test_s2_every_row_has_a_condition_and_a_status() -> None:
    rows = [row for row in vars(errors).values() if isinstance(row, ErrorKind)]
    assert len(rows) > 15
    for row in rows:
        assert ":" in row.condition
        assert 400 <= row.status < 600


def test_s2_a_refusal_says_what_was_wrong() -> None:
    error = entity_not_found("orders")
    assert error.kind is errors.NOT_FOUND
    # The JavaScript client looks for these very words.
    assert error.text == "The messaging entity 'orders' could not be found."
    assert str(BusError(errors.TIMEOUT, "too late")) == "too late"


def test_s2_a_refusal_ends_with_a_tracking_id() -> None:
    wanted = "No. TrackingId:abc, SystemTracker:q, Timestamp:2026-01-01T00:00:00Z"
    assert tracked("No", "abc", "q", "2026-01-01T00:00:00Z") == wanted
    assert tracked("No.", "abc", "q", "2026-01-01T00:00:00Z") == wanted


def test_s2_what_may_succeed_later_says_so() -> None:
    assert errors.SERVER_BUSY.retryable
    assert errors.TIMEOUT.retryable
    assert not errors.QUOTA_EXCEEDED.retryable
    assert not errors.MESSAGE_LOCK_LOST.retryable
