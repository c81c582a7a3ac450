"""What a run of the model consists of: operations that are drawn by weight, and what they share.

There is one rule only, so that the choice among the operations is ours: those which lead
somewhere must be frequent, those which destroy everything rare.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

from engine_content import RULES, Content
from engine_layouts import LAYOUTS, Made
from engine_store import ListStore, Store
from engine_world import HeldLock, Place, Receiver, World
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from naive_entities import MAIN, NaiveEntity

from twinbus.core.descriptions import SubscriptionDescription
from twinbus.engine.settlement import Settlement
from twinbus.engine.transactions import Transaction

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., None])

# What the arguments of operations are drawn from.
PICKS = range(1 << 16)
EITHER = (False, True)
# Durations of locks, delays and lives, and the moments around them.
EDGES_MS = (1, 1, 1, 1, 999, 1_000, 1_001, 4_998, 4_999, 5_000, 5_001, 20_000)
SESSIONS = ("s0", "s0", "s1", "s2")
SESSIONS_OR_NONE = ("s0", "s0", "s0", "s1", "s2", None)
CREDITS = (0, 1, 1, 2, 3, 5)
DELAYS_MS = (0, 0, 0, 1, 1_000, 5_000)
TTLS_MS = (None,) * 8 + (1, 1_000, 5_000, 5_001)
PROPERTIES: Sequence[dict[str, object]] = (
    {}, {}, {"color": "red"}, {"color": "blue"}, {"n": 0}, {"n": 1}, {"color": "red", "n": 5},
)  # fmt: skip


def pick_one(choices: Sequence[T], pick: int) -> T:
    return choices[pick % len(choices)]


@dataclass(frozen=True)
class Operation:
    weight: int
    when: Callable[[Any], object]
    arguments: dict[str, Sequence[Any]]


OPERATIONS: dict[str, Operation] = {}


def operation(
    weight: int,
    when: Callable[[Any], object] = lambda machine: True,
    **arguments: Sequence[Any],
) -> Callable[[F], F]:
    """Mark a method as a step that can be taken `when` that makes sense."""

    def mark(method: F) -> F:
        OPERATIONS[method.__name__] = Operation(weight, when, arguments)
        return method

    return mark


class Machine(RuleBasedStateMachine):
    make_store: type[Store] = ListStore
    observing = False

    @initialize(
        layout=st.sampled_from(list(LAYOUTS)),
        memory_bytes_max=st.sampled_from([0, 300, 1 << 30]),
    )
    def begin(self, layout: str, memory_bytes_max: int) -> None:
        self.world = World(self.make_store(), memory_bytes_max, observing=self.observing)
        self.layout: list[Made] = LAYOUTS[layout]
        #: Messages are so large that they fill a queue. Nothing is scheduled then: whether
        #: what expires at that moment makes room before or after is nobody's promise.
        self.is_big = layout == "full"
        self.holds_back = False
        self.sent = 0
        self.since_upheaval = 0
        self.transaction: Transaction | None = None
        self.forget_transaction()
        for description, rule_name in self.layout:
            self.world.create(description, RULES[rule_name].description if rule_name else None)
        self.world.commit()

    @rule(seed=st.integers(0, (1 << 24) - 1))
    def step(self, seed: int) -> None:
        # Each step is drawn from a seed of its own: left to Hypothesis, the first choices would
        # come far too often. It can still leave out steps to make a failing run short.
        dice = Random(seed)
        name = self._draw_operation(dice)
        arguments = OPERATIONS[name].arguments
        given = {key: dice.choice(arguments[key]) for key in arguments}
        note(f"state.{name}({', '.join(f'{k}={v!r}' for k, v in given.items())})")
        getattr(self, name)(**given)

    def _draw_operation(self, dice: Random) -> str:
        weights = [o.weight for o in OPERATIONS.values()]
        while True:
            (name,) = dice.choices(list(OPERATIONS), weights)
            if OPERATIONS[name].when(self):
                return name

    # --- helpers ----------------------------------------------------------------------

    def end(self) -> None:
        self.since_upheaval += 1
        self.world.turn()
        if not self.holds_back:
            self.world.commit()

    def targets(self) -> list[str]:
        """What can be sent to."""
        return [
            path
            for path, entity in self.world.model.entities.items()
            if not isinstance(entity.description, SubscriptionDescription)
        ]

    def awaited_targets(self) -> list[str]:
        """Every other time: where somebody waits for messages."""
        awaited = {r.place[0] for r in self.attached() if r.credit}
        return [path for path in self.targets() if path in awaited and self.sent % 2]

    def places(self, *, open_only: bool = True) -> list[Place]:
        """What can be received from; or else everything that messages can be in."""
        return [
            (path, stream.which)
            for path, entity in self.world.model.entities.items()
            for stream in entity.streams
            if not open_only
            or not (
                entity.is_topic
                or entity.receives_off
                or (stream.which == MAIN and entity.forward_to is not None)
            )
        ]

    def plain_places(self) -> list[Place]:
        return [p for p in self.places() if not self.world.model_stream(p).has_sessions]

    def session_places(self) -> list[Place]:
        return [p for p in self.places() if self.world.model_stream(p).has_sessions]

    def content(
        self, id_pick: int, session: str | None, ttl_ms: int | None, given: dict[str, object]
    ) -> Content:
        self.sent += 1
        message_id = f"id-{id_pick}" if id_pick < 4 else f"own-{self.sent}"
        body = b"m%d" % self.sent + (b"." * 250 * 1024 if self.is_big else b"")
        return Content(body, message_id, session, ttl_ms, dict(given))

    def attached(self) -> list[Receiver]:
        return [r for r in self.world.receivers.values() if r.attached]

    def live_locks(self) -> list[HeldLock]:
        return [held for held in self.world.locks if held.stream.holds(held.lock)]

    def forget_transaction(self) -> None:
        self.transaction = None
        self.tx_sends: list[tuple[NaiveEntity, Content]] = []
        self.tx_locks: list[tuple[HeldLock, Settlement]] = []
