"""Compaction's half of the engine: what is live in the oldest segments is written anew.

The journal drops segments from the oldest on only, so that a record which ends something
always outlives the record which began it. Before a segment goes, everything live in it is
carried to the journal's end, some at a time, so that nobody waits for it.
"""

from typing import Final

from twinbus.engine import records
from twinbus.engine.engine import Engine
from twinbus.engine.entities import Entity
from twinbus.engine.index import GONE
from twinbus.engine.namespace import Namespace
from twinbus.engine.shelf import Carried
from twinbus.engine.stream import Stream

# To describe an entity takes far longer than to carry a message: ten thousand queues at once
# made everybody wait for a third of a second.
_ENTITIES_A_STEP: Final = 100
# What a message or a session's state costs at least, and what 512 message ids do, in bytes: they
# take more time than their few bytes say.
_LEAST_BYTES: Final = 256
_BLOCK_BYTES: Final = 128 * 1024


class Carrier:
    """Carries what is live in segments before `segment`; `step` until it is `finished`."""

    def __init__(self, engine: Engine, segment: int) -> None:
        self.segment = segment
        self._limit = segment << 32
        self._engine = engine
        self._shared: dict[int, Carried] = {}
        #: What was written anew so far.
        self.carried_bytes = 0
        #: Nothing live is left in the old segments.
        self.finished = False
        self._carry_numbers()
        #: Still to be looked at. What is made later is beyond the old segments anyway.
        self._entities = list(engine.registry.entities.values())
        self._histories: list[Entity] = []
        #: How far the last of them has come.
        self._history_at = 0
        self._with_sessions: list[Stream] = []
        self._messages: list[tuple[Stream, int]] = []
        self._at = 0

    def _write(self, record: bytes) -> int:
        self.carried_bytes += len(record)
        return self._engine.kernel.log.append_carried(record)

    def _carry_numbers(self) -> None:
        """Keep it known which entity was the last: no number is given twice.

        Else a removed entity's messages could not be told from those of its successor.
        """
        registry = self._engine.registry
        last = registry.next_number - 1
        if last and last not in registry.entities:
            self._write(records.entity_removed(last))

    def _carry_entity(self, entity: Entity) -> bool:
        """Carry its description and what its streams know; tell whether it was described."""
        if self._engine.registry.entities.get(entity.number) is not entity:
            return False  # removed since
        is_old = entity.location < self._limit
        if is_old:
            namespace = entity.directory
            assert isinstance(namespace, Namespace)
            entity.location = self._write(namespace.record(entity))
        if entity.history is not None:
            self._histories.append(entity)
        for stream in entity.streams.values():
            self._carry_stream(stream)
        return is_old

    def _carry_stream(self, stream: Stream) -> None:
        if stream.sequence_segment < self.segment and stream.next_seq > 1:
            record = records.sequence_reached(stream.number, stream.next_seq)
            stream.sequence_segment = self._write(record) >> 32
        if stream.reservations is not None:
            stream.reservations.carry(self._limit, self._engine.kernel.log, stream.number)
        if stream.sessions is not None:
            self._with_sessions.append(stream)

    def _carry_ids(self, now_ms: int) -> int:
        """Carry some message ids of the last history; give what that cost."""
        entity = self._histories[-1]
        history = entity.history
        written = 0
        at = 0
        if history is not None and not entity.removed:
            at, written = history.carry(
                self._history_at, self._limit, now_ms, self._engine.kernel.log, entity.main.number
            )  # fmt: skip
        self._history_at = at
        if not at:
            self._histories.pop()
            return 0
        self.carried_bytes += written
        return max(written, _BLOCK_BYTES)

    def _carry_state(self) -> int:
        """Carry a session's state of the last stream; give what that cost."""
        stream = self._with_sessions[-1]
        table = stream.sessions
        written = 0
        if table is not None:
            written = table.carry_state(self._limit, self._engine.kernel.log, stream.number)
        if not written:
            self._with_sessions.pop()
            return 0
        self.carried_bytes += written
        return max(written, _LEAST_BYTES)

    def _find_messages(self) -> list[tuple[Stream, int]]:
        found: list[tuple[Stream, int]] = []
        for stream in self._engine.streams():
            found += [(stream, seq) for seq in stream.index.located_before(self._limit)]
        return found

    def step(self, bytes_max: int, now_ms: int) -> None:
        """Carry some: the entities first, then what they remember, then messages."""
        written = 0
        while self._entities and written < bytes_max:
            if self._carry_entity(self._entities.pop()):
                written += max(1, bytes_max // _ENTITIES_A_STEP)
        while self._histories and written < bytes_max:
            written += self._carry_ids(now_ms)
        while self._with_sessions and written < bytes_max:
            written += self._carry_state()
        while written < bytes_max:
            if self._at == len(self._messages):
                # A scheduled message that came due meanwhile has a new number, and its payload
                # is still where it was: it was not on the list.
                self._messages = self._find_messages()
                self._at = 0
                if not self._messages:
                    self.finished = True
                    return
            stream, seq = self._messages[self._at]
            self._at += 1
            # Settled or rewritten since the list was made: nothing of it is down there.
            if stream.index.state(seq) != GONE and stream.location(seq) < self._limit:
                size = stream.carry(seq, self._shared)
                self.carried_bytes += size
                written += max(size, _LEAST_BYTES)
