"""How a run went over its passes: some calls in full, and all of them in bins."""

from __future__ import annotations

import threading
from collections import deque
from math import isnan
from typing import TYPE_CHECKING, Final, NamedTuple

from hookline.record.bins import Grid, Series
from hookline.record.rows import EventRow, SeriesRow, pack

if TYPE_CHECKING:
    from hookline.hooks.meter import Timed
    from hookline.hooks.subject import Subject
    from hookline.hooks.tally import Looked

PASSES: Final = 2
"""So many passes of each root are kept in full at the beginning, and as many at the end."""

EVENTS: Final = 20_000
"""But no more events than these, at the beginning and at the end."""

_METRICS: Final = {"norm": "mean", "abs_max": "max", "zero_share": "mean", "nonfinite": "sum"}


class _Key(NamedTuple):
    """Of what a series is; the fields are those of `SeriesRow`."""

    root: str
    path: str | None
    name: str
    level: str
    mode: str
    direction: str
    leaf: str
    metric: str


class Course:
    """Keeps what timers and statistics hooks measure, call by call, in bounded memory.

    Args:
        start: the reading of the clock, in nanoseconds, that events are counted from.
    """

    def __init__(self, start: int) -> None:
        self._start = start
        self._grids: dict[str, Grid] = {}
        self._series: dict[_Key, tuple[Grid, Series]] = {}
        self._of_time: dict[Subject, tuple[Grid, Series]] = {}
        self._first: list[Timed] = []
        self._last: deque[Timed] = deque(maxlen=EVENTS)
        self._begun: dict[str, int] = {}
        self._lock = threading.Lock()

    def timed(self, call: Timed) -> None:
        """A call was timed."""
        what, number = call.what, call.number
        with self._lock:
            found = self._of_time.get(what)
            if found is None:
                found = self._of_time[what] = self._at(_key(what, "", "time"), number)
            grid, series = found
            grid.add(series, number, call.duration / 1e9)
            begun = self._begun.setdefault(what.root, number)
            if number < begun + PASSES and len(self._first) < EVENTS:
                self._first.append(call)
            else:
                self._last.append(call)

    def looked(self, what: Subject, leaf: str, number: int, looked: Looked) -> None:
        """The numbers in a tensor were looked at."""
        with self._lock:
            for metric, value in zip(_METRICS, looked, strict=True):
                if not isnan(value):
                    grid, series = self._at(_key(what, leaf, metric), number)
                    grid.add(series, number, value)

    def series(self) -> list[SeriesRow]:
        """All bins so far."""
        with self._lock:
            return [
                SeriesRow(*key, grid.first, grid.width, pack(series.values()))
                for key, (grid, series) in self._series.items()
            ]

    def events(self) -> list[EventRow]:
        """The calls of the first and of the last passes, as they ended."""
        with self._lock:
            kept = [*self._first, *self._latest()]
        return [_event(call, self._start) for call in kept]

    def _latest(self) -> list[Timed]:
        """Of the calls at the end, those of the last passes."""
        last: dict[str, int] = {}
        for call in self._last:
            root = call.what.root
            last[root] = max(last.get(root, 0), call.number)
        return [call for call in self._last if call.number > last[call.what.root] - PASSES]

    def _at(self, key: _Key, number: int) -> tuple[Grid, Series]:
        found = self._series.get(key)
        if found is None:
            grid = self._grids.get(key.root)
            if grid is None:
                grid = self._grids[key.root] = Grid(number)
            kind = _METRICS.get(key.metric, "mean")
            found = self._series[key] = grid, grid.series(kind)
        return found


def _key(what: Subject, leaf: str, metric: str) -> _Key:
    place = (what.root, what.path, what.name, what.level)
    return _Key(*place, what.mode, what.direction, leaf, metric)


def _event(call: Timed, start: int) -> EventRow:
    return EventRow(
        **call.what._asdict(),
        index=call.call_index,
        pass_number=call.number,
        step=call.step,
        thread=call.thread,
        begin=(call.begin - start) / 1e9,
        duration=call.duration / 1e9,
    )
