"""Statistics of many tensors by name, in memory that does not grow with how often they are seen."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from math import nan, sqrt
from operator import add
from typing import Final, NamedTuple

from torch import Tensor

from hookline.core.magnitudes import BINS
from hookline.core.records import StatsRow
from hookline.hooks.histogram import SAMPLE, magnitudes
from hookline.hooks.moments import Moments, measure, sample_of
from hookline.hooks.reading import numbers_of
from hookline.hooks.subject import Subject


class _Entry:
    """What is known of one tensor over all calls."""

    __slots__ = ("bins", "calls", "moments", "normed", "norms", "scale")

    def __init__(self) -> None:
        self.moments = Moments()
        self.bins = [0] * BINS
        self.calls = 0
        self.norms = 0.0
        self.normed = 0
        self.scale = 1.0


class Looked(NamedTuple):
    """What one look at a tensor found; NaN is what no finite number told."""

    norm: float
    abs_max: float
    zero_share: float
    nonfinite: int


class _Measured(NamedTuple):
    """What was measured of one tensor in one call, still on its device."""

    what: Subject
    leaf: str
    moments: Tensor
    bins: Tensor | None
    scale: float
    number: int


class Tally:
    """Adds up statistics.

    What is measured on a device stays there until it is asked for, or until there is much of it;
    then it is read together.

    Args:
        histogram: count magnitudes too.

    Attributes:
        listener: is given what each look found: of what, which leaf, in which pass; or None.
    """

    LIMIT: Final = 512
    """So many measurements are read at the latest."""

    def __init__(self, *, histogram: bool) -> None:
        self.listener: Callable[[Subject, str, int, Looked], None] | None = None
        self._histogram: Final = histogram
        self._entries: defaultdict[tuple[Subject, str], _Entry] = defaultdict(_Entry)
        self._waiting: list[_Measured] = []
        self._lock = threading.Lock()

    def add(
        self, what: Subject, leaf: str, values: Tensor, scale: float = 1.0, number: int = 0
    ) -> None:
        """Add the numbers of a tensor, divided by a scale.

        Args:
            what: of what they are.
            leaf: the tensor.
            values: the numbers, as `readable` gives them.
            scale: what they are divided by.
            number: the pass that they are of.
        """
        bins = magnitudes(sample_of(values, SAMPLE), 1 / scale) if self._histogram else None
        measured = _Measured(what, leaf, measure(values), bins, scale, number)
        with self._lock:
            self._waiting.append(measured)
            if values.is_cpu or len(self._waiting) >= self.LIMIT:
                self._read()

    def rows(self) -> list[StatsRow]:
        """What was added up so far."""
        with self._lock:
            self._read()
            return [self._row(*key, entry) for key, entry in self._entries.items()]

    def reset(self) -> None:
        """Forget all."""
        with self._lock:
            self._waiting.clear()
            self._entries.clear()

    def _read(self) -> None:
        waiting, self._waiting = self._waiting, []
        moments = numbers_of([measured.moments for measured in waiting])
        counts = iter(numbers_of([m.bins for m in waiting if m.bins is not None]))
        for measured, numbers in zip(waiting, moments, strict=True):
            entry = self._entries[measured.what, measured.leaf]
            self._merge(entry, Moments.read(numbers).scaled(1 / measured.scale), measured)
            if measured.bins is not None:
                entry.bins = list(map(add, entry.bins, next(counts)))

    def _merge(self, entry: _Entry, call: Moments, measured: _Measured) -> None:
        norm = sqrt(call.sum_of_squares)
        entry.moments.merge(call)
        entry.calls += 1
        if call.count:
            entry.norms += norm
            entry.normed += 1
        entry.scale = measured.scale
        if self.listener is not None:
            bad = call.nan + call.infinite
            if call.count:
                found = Looked(norm, call.abs_max, call.zeros / call.count, bad)
            else:
                found = Looked(nan, nan, nan, bad)
            self.listener(measured.what, measured.leaf, measured.number, found)

    def _row(self, what: Subject, leaf: str, entry: _Entry) -> StatsRow:
        found = entry.moments
        known = (
            found.mean,
            found.std,
            found.minimum,
            found.maximum,
            found.abs_max,
            entry.norms / max(entry.normed, 1),
            found.zeros / max(found.count, 1),
        )
        mean, std, low, high, abs_max, norm, zeros = known if found.count else (nan,) * len(known)
        return StatsRow(
            **what._asdict(),
            leaf=leaf,
            calls=entry.calls,
            count=found.count,
            mean=mean,
            std=std,
            minimum=low,
            maximum=high,
            abs_max=abs_max,
            norm=norm,
            zero_share=zeros,
            nan=found.nan,
            inf=found.infinite,
            histogram=tuple(entry.bins) if self._histogram else (),
            scale=entry.scale,
        )
