"""Numbers over the passes of a root: at most 256 bins, however many passes there are."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Final

LIMIT: Final = 256
"""So many bins there are at most; where more passes come, each becomes twice as wide."""


class Grid:
    """The bins of one root, which all its series share, so that they can stand in one picture.

    Args:
        first: the pass with which the first bin begins.

    Attributes:
        first: likewise.
        width: how many passes are in a bin.

    Example:
        >>> grid = Grid(0)
        >>> series = grid.series("mean")
        >>> for number in range(512):
        ...     grid.add(series, number, number % 2)
        >>> grid.width, series.values()[:3]
        (2, [0.5, 0.5, 0.5])
    """

    def __init__(self, first: int) -> None:
        self.first: Final = first
        self.width = 1
        self._series: list[Series] = []

    def series(self, kind: str) -> Series:
        """A new series in these bins.

        Args:
            kind: what the number of a bin is of those that are put into it: `mean`, `max` or `sum`.
        """
        series = Series(kind)
        self._series.append(series)
        return series

    def add(self, series: Series, number: int, value: float) -> None:
        """Add a number to one of its series.

        Args:
            series: the series.
            number: the pass; what belongs to one before the first counts to the first bin.
            value: the number.
        """
        place = (number - self.first) // self.width
        while place >= LIMIT:
            self._widen()
            place = (number - self.first) // self.width
        series.add(max(place, 0), value)

    def _widen(self) -> None:
        self.width *= 2
        for series in self._series:
            series.halve()


class Series:
    """One number over passes; made by a `Grid`."""

    __slots__ = ("_counts", "_is_mean", "_join", "_numbers")

    def __init__(self, kind: str) -> None:
        self._is_mean = kind == "mean"
        self._join: Callable[[float, float], float] = max if kind == "max" else operator.add
        self._numbers: list[float] = []
        self._counts: list[int] = []

    def add(self, place: int, value: float) -> None:
        """Put a number into a bin."""
        missing = place + 1 - len(self._counts)
        if missing > 0:
            self._numbers += [0.0] * missing
            self._counts += [0] * missing
        filled = self._counts[place]
        self._numbers[place] = self._join(self._numbers[place], value) if filled else value
        self._counts[place] = filled + 1

    def halve(self) -> None:
        """Put every two neighbouring bins together."""
        numbers, counts = self._numbers, self._counts
        self._numbers, self._counts = [], []
        for place, (number, count) in enumerate(zip(numbers, counts, strict=True)):
            if count:
                self.add(place // 2, number)
                self._counts[-1] += count - 1
            elif not place % 2:
                self._numbers.append(0.0)
                self._counts.append(0)

    def values(self) -> list[float]:
        """The number of each bin; NaN where nothing was put in."""
        return [
            math.nan if not count else number / count if self._is_mean else number
            for number, count in zip(self._numbers, self._counts, strict=True)
        ]
