"""Sets of sequence numbers as ascending, disjoint ranges with both ends in the set.

Pure arithmetic: nothing here knows a broker or Spark. A batch of 50,000 messages is mostly
one range; where others took messages out of the middle there may be many.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Ranges:
    pairs: tuple[tuple[int, int], ...] = ()

    @classmethod
    def from_flat(cls, numbers: Sequence[int]) -> Ranges:
        """From lo, hi, lo, hi …"""
        return cls(tuple(zip(map(int, numbers[::2]), map(int, numbers[1::2]), strict=True)))

    @classmethod
    def from_numbers(cls, numbers: Iterable[int]) -> Ranges:
        ordered = np.unique(np.fromiter(numbers, dtype=np.int64))
        if not ordered.size:
            return cls()
        breaks = np.flatnonzero(np.diff(ordered) != 1)
        lows = ordered[np.concatenate(([0], breaks + 1))]
        highs = ordered[np.concatenate((breaks, [ordered.size - 1]))]
        return cls(tuple(zip(lows.tolist(), highs.tolist(), strict=True)))

    def __bool__(self) -> bool:
        return bool(self.pairs)

    def __len__(self) -> int:
        """How many numbers are in the set."""
        return sum(high - low + 1 for low, high in self.pairs)

    @property
    def low(self) -> int:
        return self.pairs[0][0]

    @property
    def high(self) -> int:
        return self.pairs[-1][1]

    def numbers(self) -> Iterable[int]:
        for low, high in self.pairs:
            yield from range(low, high + 1)

    def split(self, parts: int) -> list[Ranges]:
        """Cut into at most `parts` sets of even size, in order."""
        total = len(self)
        cuts = [total * part // parts for part in range(1, parts + 1)]
        pieces: list[Ranges] = []
        piece: list[tuple[int, int]] = []
        passed = 0
        for low, high in self.pairs:
            while low <= high:
                end = min(high, low + cuts[len(pieces)] - passed - 1)
                if end >= low:
                    piece.append((low, end))
                    passed += end - low + 1
                    low = end + 1
                if passed == cuts[len(pieces)]:
                    pieces.append(Ranges(tuple(piece)))
                    piece = []
        return [piece for piece in pieces if piece]

    def cover(self, pairs_max: int) -> Ranges:
        """Give at most `pairs_max` ranges that hold this set: neighbours are joined."""
        if len(self.pairs) <= pairs_max:
            return self
        each = -(-len(self.pairs) // pairs_max)
        groups = (self.pairs[at : at + each] for at in range(0, len(self.pairs), each))
        return Ranges(tuple((group[0][0], group[-1][1]) for group in groups))

    def mask(self, numbers: Any) -> Any:
        """Tell for each of these ascending numbers (a numpy array) whether it is in the set."""
        lows, highs = self._ends()
        at = np.searchsorted(lows, numbers, side="right") - 1
        return (at >= 0) & (numbers <= highs[np.maximum(at, 0)])

    def between(self, low: int, high: int) -> Ranges:
        """The part of the set from `low` to `high`."""
        kept = ((max(a, low), min(b, high)) for a, b in self.pairs if a <= high and b >= low)
        return Ranges(tuple(kept))

    def without(self, others: Ranges) -> Ranges:
        left: list[tuple[int, int]] = []
        for low, high in self.pairs:
            for a, b in others.between(low, high).pairs:
                if low < a:
                    left.append((low, a - 1))
                low = b + 1
            if low <= high:
                left.append((low, high))
        return Ranges(tuple(left))

    def __str__(self) -> str:
        shown = ", ".join(f"{a}" if a == b else f"{a}–{b}" for a, b in self.pairs[:5])
        return f"{shown} …" if len(self.pairs) > 5 else shown

    def _ends(self) -> tuple[Any, Any]:
        ends = np.array(self.pairs, dtype=np.int64).reshape(-1, 2)
        return ends[:, 0], ends[:, 1]
