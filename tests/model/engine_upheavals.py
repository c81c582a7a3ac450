"""Operations on everything else: entities, the clock, the disk, the process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from engine_content import RULES
from engine_layouts import Made
from engine_machine import EDGES_MS, EITHER, PICKS, Machine, operation, pick_one
from naive_entities import NaiveEntity

from twinbus.engine.topics import Subscription

CHANGES: Sequence[dict[str, object]] = (
    {"lock_duration_ms": 5_000},
    {"lock_duration_ms": 7_000},
    {"max_delivery_count": 1},
    {"max_delivery_count": 3},
    {"default_message_time_to_live_ms": 2_000},
    {"dead_lettering_on_message_expiration": True},
    {"status": "Disabled"},
    {"status": "SendDisabled"},
    {"status": "ReceiveDisabled"},
    {"status": "Active"},
    {"status": "Active"},
    {"forward_to": "sink"},
    {"forward_to": None},
)


class Upheavals(Machine):
    # --- entities ---------------------------------------------------------------------

    @operation(
        2,
        lambda m: m.since_upheaval > 3 and m.world.model.entities,
        pick=PICKS,
        change=CHANGES,
    )
    def update(self, pick: int, change: dict[str, object]) -> None:
        world = self.world
        paths = list(world.model.entities)
        path = pick_one(paths, pick)
        old = world.model.entities[path].description
        forwards = change.get("forward_to") is not None
        if forwards and (path == "sink" or "sink" not in paths or _has_sessions(old)):
            return
        if not all(hasattr(old, name) for name in change):
            return
        self.since_upheaval = 0
        for name in ("forward_to", "forward_dead_lettered_messages_to"):
            target = getattr(old, name, None)
            if target is not None and target not in paths and not change.get(name):
                change = {**change, name: None}
        world.update(path, replace(old, **change))  # type: ignore[arg-type]
        self.end()

    @operation(
        1,
        lambda m: m.since_upheaval > 6,
        pick=PICKS,
    )
    def delete(self, pick: int) -> None:
        self.since_upheaval = 0
        if self.world.model.entities:
            self.world.delete(pick_one(list(self.world.model.entities), pick))
        self.end()

    @operation(
        2,
        lambda m: m.missing(),
        pick=PICKS,
    )
    def create(self, pick: int) -> None:
        description, rule_name = pick_one(self.missing(), pick)
        self.world.create(description, RULES[rule_name].description if rule_name else None)
        self.end()

    def missing(self) -> list[Made]:
        """What was deleted and can be made again."""
        known = self.world.model.entities
        wants = ("topic", "forward_to", "forward_dead_lettered_messages_to")
        return [
            made
            for made in self.layout
            if NaiveEntity(made[0]).path not in known
            and all(getattr(made[0], name, None) in (None, *known) for name in wants)
        ]

    @operation(
        1,
        lambda m: any(e.rules for e in m.world.model.entities.values()),
        pick=PICKS,
        name=sorted(RULES),
        removes=EITHER,
    )
    def change_rules(self, pick: int, name: str, removes: bool) -> None:
        world = self.world
        path = pick_one([path for path, e in world.model.entities.items() if e.rules], pick)
        subscription, model = world.entity(path), world.model.entities[path]
        assert isinstance(subscription, Subscription)
        if removes and len(model.rules) > 1 and name in model.rules:
            world.namespace.delete_rule(subscription, name)
            del model.rules[name]
        elif name not in model.rules:
            world.namespace.create_rule(subscription, RULES[name].description, world.now_ms)
            model.rules[name] = replace(RULES[name].description, created_ms=world.now_ms)
        self.end()

    # --- time, disk and crashes -------------------------------------------------------

    @operation(3, passed_ms=EDGES_MS)
    def advance(self, passed_ms: int) -> None:
        self.world.advance(passed_ms)
        self.end()

    @operation(
        5,
        lambda m: m.deadlines(),
        pick=PICKS,
        off_ms=(-1, 0, 0, 1),
        looks=EITHER,
    )
    def advance_to_deadline(self, pick: int, off_ms: int, looks: bool) -> None:
        """Go to a moment at which something ends, or just beside it.

        Without a look at the clock the next command comes before the timers run.
        """
        moment_ms = pick_one(self.deadlines(), pick) + off_ms
        self.world.advance(max(0, moment_ms - self.world.now_ms))
        if looks:
            self.end()

    def deadlines(self) -> list[int]:
        """The next moments at which something ends by itself."""
        lives = [m.expires_ms for s in self.world.model.streams() for m in s.messages]
        moments = {*self.world.model.deadlines(), *lives}
        return sorted(ms for ms in moments if ms > self.world.now_ms)[:3]

    @operation(1, holds_back=EITHER)
    def change_pace(self, holds_back: bool) -> None:
        """Commit after each step, or let what is not durable gather."""
        self.holds_back = holds_back
        self.end()

    @operation(
        4,
        lambda m: m.holds_back and m.world.store.overlaps,
    )
    def go_on_committing(self) -> None:
        """A commit begins, or ends while the next one gathers."""
        if self.world.sealed is None:
            self.world.begin_commit()
        else:
            self.world.finish_commit()
        self.world.turn()

    @operation(
        1,
        lambda m: m.since_upheaval > 6,
        keep_in_flight=EITHER,
        revive_dropped=EITHER,
    )
    def crash(self, keep_in_flight: bool, revive_dropped: bool) -> None:
        self.since_upheaval = 0
        self.world.crash(keep_in_flight=keep_in_flight, revive_dropped=revive_dropped)
        self.forget_transaction()
        self.end()

    @operation(
        3,
        lambda m: len(m.world.store.segments()) > 1 and m.world.sealed is None,
        segments=(1, 2, 3, 100),
        bytes_max=(1, 400, 1 << 20),
    )
    def compact(self, segments: int, bytes_max: int) -> None:
        self.world.start_carrying(segments)
        self.world.carry(bytes_max)
        self.end()


def _has_sessions(description: object) -> bool:
    return bool(getattr(description, "requires_session", False))
