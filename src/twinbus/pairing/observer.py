"""Takes events in; they leave to the user's callback, to the log and into counters.

It must not fail: an error in the user's callback is logged and goes no further, because the
message that is being sent has nothing to do with it.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable

from twinbus.pairing import events
from twinbus.pairing.events import Event

log = logging.getLogger("twinbus.pairing")

OnEvent = Callable[[Event], None]

_LEVELS: dict[type, int] = {
    events.EntitySuspected: logging.WARNING,
    events.EntityFailedOver: logging.WARNING,
    events.EntityCleared: logging.INFO,
    events.EntityRecovered: logging.WARNING,
    events.PingSent: logging.INFO,
    events.MessagesBacklogged: logging.DEBUG,
    events.BacklogQueueDropped: logging.WARNING,
    events.MessageSyphoned: logging.DEBUG,
    events.SyphonDeferred: logging.INFO,
    events.MessageDeadLettered: logging.WARNING,
    events.PumpFailed: logging.WARNING,
    events.PairFaulted: logging.ERROR,
}


class Observer:
    """One per pair or syphon."""

    def __init__(self, on_event: OnEvent | None = None) -> None:
        self._on_event = on_event
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def tell(self, happened: Iterable[Event]) -> None:
        for event in happened:
            # Messages are counted, everything else is counted as it happens.
            number = event.count if isinstance(event, events.MessagesBacklogged) else 1
            with self._lock:
                self._counts[type(event).__name__] += number
            log.log(_LEVELS[type(event)], "%s", event)
            if self._on_event is not None:
                try:
                    self._on_event(event)
                except Exception:
                    log.exception("The callback for pairing events failed on %s", event)

    def counters(self) -> dict[str, int]:
        """How often each thing happened, by the name of its event."""
        with self._lock:
            return dict(self._counts)
