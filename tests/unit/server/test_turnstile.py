"""Fair shares of a broker that has more to do than it can."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from twinbus.server.turnstile import Turnstile


class Crowd:
    """Connections that send as much as they can, each in portions of its own size."""

    def __init__(self, sizes: dict[str, int]) -> None:
        self.turnstile = Turnstile()
        self.order: list[str] = []
        self.got: Counter[str] = Counter()
        self._sizes: dict[str, int] = {}
        self._marks: dict[str, int] = {}
        for name, size in sizes.items():
            self.flood(name, size)

    def flood(self, name: str, size: int) -> None:
        self._sizes[name] = size
        self.come(name, size)

    def come(self, name: str, size: int) -> None:
        def resume() -> None:
            self.order.append(name)
            self.got[name] += size

        self._marks[name] = self.turnstile.hold(self._marks.get(name, 0), size, resume)

    def let_in(self, turns: int) -> None:
        """Whoever is let in and floods comes again."""
        for _ in range(turns):
            self.turnstile.let_in()
            name = self.order[-1]
            if name in self._sizes:
                self.come(name, self._sizes[name])

    def turns_until(self, name: str) -> int:
        begun = len(self.order)
        while name not in self.order[begun:]:
            self.let_in(1)
        return len(self.order) - begun


def test_equals_go_in_the_order_in_which_they_came() -> None:
    crowd = Crowd({"a": 10, "b": 10, "c": 10})
    crowd.let_in(6)
    assert crowd.order == ["a", "b", "c", "a", "b", "c"]


def test_what_is_held_is_counted() -> None:
    crowd = Crowd({"a": 10, "b": 30})
    assert crowd.turnstile.held_bytes == 40
    assert crowd.turnstile.next_bytes() == 10
    crowd.turnstile.let_in()
    assert crowd.turnstile.held_bytes == 30
    crowd.turnstile.let_in()
    assert crowd.turnstile.held_bytes == 0
    assert not crowd.turnstile


def test_who_comes_now_and_then_passes_those_who_flood() -> None:
    crowd = Crowd({f"flood {number}": 256 for number in range(100)})
    crowd.let_in(500)
    for burst in (1, 1, 5, 20, 1):
        crowd.come("modest", burst)
        turns = crowd.turns_until("modest")
        # It waits for as many as got no more than it asks for.
        assert turns <= 1 + 100 * burst // 256
        crowd.let_in(300)


def test_who_was_away_has_saved_up_nothing() -> None:
    crowd = Crowd({"busy": 10})
    crowd.let_in(1000)
    crowd.flood("late", 10)
    crowd.let_in(100)
    assert 45 <= crowd.order[-100:].count("late") <= 55


@given(st.dictionaries(st.text(max_size=3), st.integers(1, 1000), min_size=1, max_size=20))
def test_all_get_the_same_share_and_nobody_starves(sizes: dict[str, int]) -> None:
    crowd = Crowd(sizes)
    crowd.let_in(2000)
    spread = max(crowd.got[name] for name in sizes) - min(crowd.got[name] for name in sizes)
    assert spread <= 2 * max(sizes.values())
