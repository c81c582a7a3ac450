"""Patience has an end, and none is none."""

from twinbus.spark.patience import Patience


def test_no_patience_does_not_wait() -> None:
    assert not Patience(0).pause()


def test_patience_pauses_and_then_is_at_its_end() -> None:
    patience = Patience(0.2)
    pauses = 0
    while patience.pause():
        pauses += 1
    # 0.05 and 0.1 seconds; a third pause would take it past the end.
    assert 1 <= pauses <= 2
    assert not patience.pause()
