"""Many durations in little memory: their sum, extremes and median."""

from __future__ import annotations

from collections import Counter
from math import exp2, log2
from typing import Final

EXACT: Final = 1_000
"""Up to so many durations the median is exact."""
_BINS_PER_OCTAVE: Final = 32


class Series:
    """Durations of one kind of call, in nanoseconds.

    Beyond `EXACT` values they are only counted in bins of a logarithmic histogram, 32 to a
    doubling: the median is then right to 1.1 %, and memory no longer grows.

    Attributes:
        count: how many there are.
        total: their sum, calls inside them included.
        self_total: their sum without the calls inside them.
    """

    __slots__ = ("_bins", "_values", "count", "maximum", "minimum", "self_total", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0
        self.self_total = 0
        self.minimum = 0
        self.maximum = 0
        self._values: list[int] = []
        self._bins: Counter[int] = Counter()

    def add(self, duration: int, inside: int) -> None:
        """Add one call.

        Args:
            duration: how long it took.
            inside: how much of that was spent in calls inside it.
        """
        if duration < self.minimum or not self.count:
            self.minimum = duration
        if duration > self.maximum:  # noqa: PLR1730 - a comparison is faster than a call
            self.maximum = duration
        self.count += 1
        self.total += duration
        self.self_total += duration - inside
        if self.count <= EXACT:
            self._values.append(duration)
            return
        if self._values:
            self._bins.update(map(_bin, self._values))
            self._values = []
        self._bins[_bin(duration)] += 1

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
        left = self.count / 2
        for place in sorted(self._bins):
            left -= self._bins[place]
            if left <= 0:
                return exp2((place + 0.5) / _BINS_PER_OCTAVE)
        raise AssertionError


def _bin(duration: int) -> int:
    return int(log2(max(duration, 1)) * _BINS_PER_OCTAVE)
