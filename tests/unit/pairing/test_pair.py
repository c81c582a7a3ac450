"""What the senders of a pair share, with threads: its end must not be missed (P12)."""

import threading
from typing import Any

import pytest

from twinbus.pairing.observer import Observer
from twinbus.pairing.options import SendAvailabilityPairedNamespaceOptions
from twinbus.pairing.policy import BacklogQueue
from twinbus.pairing.sync import pair as threads


def test_p12_a_close_while_the_keeper_begins_its_round_is_not_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clearing, closed = threading.Event(), threading.Event()

    class Slow(threads.Event):
        def clear(self) -> None:
            clearing.set()
            assert closed.wait(10)
            super().clear()

    monkeypatch.setattr(threads, "Event", Slow)
    nobody: Any = None
    options = SendAvailabilityPairedNamespaceOptions(secondary="", administration="")
    pair = threads.Pair(nobody, nobody, [BacklogQueue(0, "b/0")], options, Observer())
    assert clearing.wait(10)
    pair.fault("The secondary client was closed.")
    closed.set()
    pair._keeper._thread.join(10)
    assert pair._keeper.done()
    pair.close("The test is over.")
