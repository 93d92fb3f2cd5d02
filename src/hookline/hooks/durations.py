"""Many durations in little memory: their sum, extremes and median."""

from __future__ import annotations

from collections import Counter
from math import exp2, log2
from typing import Final

EXACT: Final = 1_000
"""Up to so many durations the median is exact."""
_BINS_PER_OCTAVE: Final = 32


class Durations:
    """Durations of one kind of call, in nanoseconds.

    The latest are kept as they are; as soon as they are more than `EXACT`, they are added up and
    counted in bins of a logarithmic histogram, 32 to a doubling: the median is then right to
    1.1 %, and memory does not grow. So adding one costs little, and adding up is done for many.
    """

    __slots__ = ("_added", "_bins", "_highest", "_inside", "_lowest", "_sum", "_values")

    def __init__(self) -> None:
        self._values: list[int] = []
        self._inside = 0
        # Of those that are no longer among the values:
        self._added = 0
        self._sum = 0
        self._lowest: tuple[int, ...] = ()
        self._highest: tuple[int, ...] = ()
        self._bins: Counter[int] = Counter()

    def add(self, duration: int, inside: int) -> None:
        """Add one call.

        Args:
            duration: how long it took.
            inside: how much of that was spent in calls inside it.
        """
        values = self._values
        values.append(duration)
        self._inside += inside
        if len(values) > EXACT:
            self._add_up()

    def _add_up(self) -> None:
        values = self._values
        self._lowest, self._highest = (self.minimum,), (self.maximum,)
        self._added += len(values)
        self._sum += sum(values)
        self._bins.update(map(_bin, values))
        self._values = []

    @property
    def count(self) -> int:
        """How many there are."""
        return self._added + len(self._values)

    @property
    def total(self) -> int:
        """Their sum, calls inside them included."""
        return self._sum + sum(self._values)

    @property
    def self_total(self) -> int:
        """Their sum without the calls inside them."""
        return self.total - self._inside

    @property
    def minimum(self) -> int:
        """The shortest; 0 if there is none."""
        return min((*self._lowest, *self._values), default=0)

    @property
    def maximum(self) -> int:
        """The longest; 0 if there is none."""
        return max((*self._highest, *self._values), default=0)

    @property
    def median(self) -> float:
        """The duration in the middle; of an even number, halfway between the two."""
        if self._bins:
            return min(max(self._binned_median(), self.minimum), self.maximum)
        ordered = sorted(self._values)
        middle = len(ordered) // 2
        if len(ordered) % 2:
            return ordered[middle]
        return (ordered[middle - 1] + ordered[middle]) / 2 if ordered else 0

    def _binned_median(self) -> float:
        bins = self._bins + Counter(map(_bin, self._values))
        left = self.count / 2
        for place in sorted(bins):
            left -= bins[place]
            if left <= 0:
                return exp2((place + 0.5) / _BINS_PER_OCTAVE)
        raise AssertionError


def _bin(duration: int) -> int:
    return int(log2(max(duration, 1)) * _BINS_PER_OCTAVE)
