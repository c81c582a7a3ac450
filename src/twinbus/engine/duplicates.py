"""Which message ids an entity has seen of late (E7)."""

from collections import OrderedDict

from twinbus.engine import records
from twinbus.engine.records import Log


class DuplicateHistory:
    def __init__(self, window_ms: int) -> None:
        self.window_ms = window_ms
        #: When each id was seen, and where that is written; oldest first.
        self.ids: OrderedDict[bytes, tuple[int, int]] = OrderedDict()

    def seen(self, message_id: bytes, now_ms: int) -> bool:
        known = self.ids.get(message_id)
        return known is not None and now_ms - known[0] < self.window_ms

    def remember(self, message_id: bytes, now_ms: int, log: Log, stream: int) -> None:
        location = log.append(records.remembered(stream, now_ms, message_id))
        self.note(message_id, now_ms, location)
        self._forget_old(now_ms)

    def note(self, message_id: bytes, at_ms: int, location: int) -> None:
        # Taken out first, so that the order stays the order of time.
        self.ids.pop(message_id, None)
        self.ids[message_id] = (at_ms, location)

    def _forget_old(self, now_ms: int) -> None:
        # Two for each one that comes, so that the table shrinks after a burst, yet no
        # single send pays for it.
        for _ in range(2):
            for message_id, (at_ms, _) in self.ids.items():
                if now_ms - at_ms >= self.window_ms:
                    del self.ids[message_id]
                    break
                return
            else:
                return

    def shift(self, step_ms: int) -> None:
        """The clock was set: the windows of what is known go on from there."""
        self.ids = OrderedDict(
            (message_id, (at_ms + step_ms, location))
            for message_id, (at_ms, location) in self.ids.items()
        )

    def carry(self, location_max: int, now_ms: int, log: Log, stream: int) -> None:
        """Write anew what still counts and lies below a place in the journal."""
        for message_id, (at_ms, location) in list(self.ids.items()):
            if location < location_max:
                if now_ms - at_ms < self.window_ms:
                    record = records.remembered(stream, at_ms, message_id)
                    self.ids[message_id] = (at_ms, log.append_carried(record))
                else:
                    del self.ids[message_id]
