"""Operations of those who take messages in bulk: reserve, try, settle, release (L3)."""

from __future__ import annotations

import naive_reservations as naive
from engine_machine import PICKS, Machine, operation, pick_one
from engine_world import Place
from naive_entities import NaiveReserver

from twinbus.engine import parting, reserving
from twinbus.engine.entities import Holder
from twinbus.engine.index import NEVER
from twinbus.engine.stream import Stream

NAMES = ("job", "job", "other")
# Mostly the epoch that is right, sometimes one beside it.
EPOCHS_OFF = (0, 0, 0, 0, 0, -1, 1)
# Mostly somebody who has something, sometimes somebody else.
OTHERS = (False, False, False, False, True)


class BulkOperations(Machine):
    def outstanding(self) -> list[tuple[Place, str]]:
        """Where somebody has messages set aside, and who."""
        return [
            (place, name)
            for place in self.places(open_only=False)
            for name, reserver in self.world.model_stream(place).reservers.items()
            if reserver.epochs
        ]

    def _pick(self, pick: int, other: bool) -> tuple[Place, str]:
        place, name = pick_one(self.outstanding(), pick)
        return place, ("other" if name == "job" else "job") if other else name

    def _parties(self, place: Place) -> tuple[Holder, Stream]:
        holder = self.world.entity(place[0])
        assert isinstance(holder, Holder)
        return holder, holder.stream(place[1])

    def _reserver(self, place: Place, name: str) -> NaiveReserver:
        return self.world.model_stream(place).reservers.get(name) or NaiveReserver()

    @operation(
        5,
        lambda m: m.places_with("active"),
        pick=PICKS,
        name=NAMES,
        off=EPOCHS_OFF,
        again=(False, False, False, True),
        count_max=(1, 2, 3, 100),
        bounds=((1, NEVER), (1, NEVER), (1, NEVER), (2, NEVER), (3, 6), (1, 2)),
    )
    def reserve(
        self, pick: int, name: str, off: int, again: bool, count_max: int, bounds: tuple[int, int]
    ) -> None:
        world = self.world
        places = [p for p in self.places_with("active") if not world.model.entities[p[0]].is_topic]
        if not places:
            return
        place = pick_one(places, pick)
        model = world.model_stream(place)
        holder, stream = self._parties(place)
        epoch = max(1, self._reserver(place, name).last + (0 if again else 1) + off)

        def ask() -> list[int] | None:
            found = reserving.reserve(holder, stream, name, epoch, count_max, world.now_ms, *bounds)
            return None if found is None else found.seqs()

        got, wanted = world.both(
            ask, lambda: naive.reserve(world.model, model, name, epoch, count_max, bounds)
        )
        assert got == wanted
        self.end()

    @operation(
        5,
        lambda m: m.outstanding(),
        pick=PICKS,
        other=OTHERS,
        off=EPOCHS_OFF,
        attempts_max=(0, 1, 1, 2),
    )
    def attempt(self, pick: int, other: bool, off: int, attempts_max: int) -> None:
        world = self.world
        place, name = self._pick(pick, other)
        model = world.model_stream(place)
        holder, stream = self._parties(place)
        epoch = max(1, self._reserver(place, name).last + off)

        def ask() -> tuple[int, bool]:
            found = reserving.attempt(holder, stream, name, epoch, attempts_max, world.now_ms)
            return found.attempts, found.is_buried

        got, wanted = world.both(
            ask, lambda: naive.attempt(world.model, model, name, epoch, attempts_max)
        )
        assert got == wanted
        self.end()

    @operation(
        3,
        lambda m: m.outstanding(),
        pick=PICKS,
        other=OTHERS,
        off=EPOCHS_OFF,
        # Which of the messages, counted from the first, return, and which die.
        apart=(((), ()), ((), ()), ((0,), ()), ((1, 2), ()), ((), (0,)), ((0,), (1,))),
    )
    def settle_upto(
        self, pick: int, other: bool, off: int, apart: tuple[tuple[int, ...], tuple[int, ...]]
    ) -> None:
        world = self.world
        place, name = self._pick(pick, other)
        model = world.model_stream(place)
        holder, stream = self._parties(place)
        epoch = max(0, self._reserver(place, name).last + off)
        reserved = [m.seq for m in model.messages if m.reserved_for is not None]
        returned, dead = ([seq for i, seq in enumerate(reserved) if i in some] for some in apart)

        def ask() -> int:
            if returned or dead:
                death = dict.fromkeys(dead, ("unfit", "why"))
                parting.part(holder, stream, name, epoch, returned, death, world.now_ms)
            return reserving.settle_upto(stream, name, epoch)

        def expect() -> int:
            if returned or dead:
                naive.part(world.model, model, name, epoch, returned, dead)
            return naive.settle_upto(world.model, model, name, epoch)

        got, wanted = world.both(ask, expect)
        assert got == wanted
        self.end()

    @operation(
        2,
        lambda m: m.outstanding(),
        pick=PICKS,
        other=OTHERS,
    )
    def release_reserved(self, pick: int, other: bool) -> None:
        world = self.world
        place, name = self._pick(pick, other)
        model = world.model_stream(place)
        holder, stream = self._parties(place)
        got, wanted = world.both(
            lambda: reserving.release(holder, stream, name, world.now_ms),
            lambda: naive.release(world.model, model, name),
        )
        assert got == wanted
        self.end()
