"""What differs between two runs: slower, larger, dead, not finite any more, gone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, NamedTuple

from hookline.core.records import (
    FlopRow,
    MemoryRow,
    NonFiniteRow,
    ParameterRow,
    Silent,
    StatsRow,
    TimeRow,
)
from hookline.record.rows import ModuleRow
from hookline.record.runs import RunData
from hookline.report.tables.stats import is_dead
from hookline.report.tables.units import duration, plural, times

CHANGES: Final = (
    *("not finite", "dead", "never called", "gone", "slower", "larger"),
    *("new", "smaller", "faster", "alive", "finite"),
)
"""What may have changed, the worst first."""

THRESHOLD: Final = 1.25
"""From this ratio on a time or a size has changed."""

_LOOKS: Final = "--nonfinite"
_MATTERS: Final = 0.01
# Norms wander in training: what is no change of the program may well be a half.
_NUMBERS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that is not in both runs as it was.

    Example:
        >>> found = Difference("slower", "time", "Net", "head", before=0.25, after=0.75)
        >>> found.ratio
        3.0
    """

    change: str
    """One of `CHANGES`."""
    what: str
    """Which number: `time` (seconds a call, without calls inside), `outputs` and `saved` (bytes),
    `FLOPs` (a call), `norm`, `largest`, `zeros`, `gradient`; `""` where it is none."""
    root: str
    """As in the rows; so are the next five."""
    path: str | None
    """The path; of a parameter, its name."""
    name: str = ""
    """The function."""
    mode: str = ""
    """The mode; `""` for what has none."""
    direction: str = ""
    """The direction, likewise."""
    leaf: str = ""
    """The tensor, likewise."""
    before: float | None = None
    """The number in the first run."""
    after: float | None = None
    """The number in the second."""
    note: str = ""
    """What else is known: a verdict, a cause."""
    weight: float = 0.0
    """How much it matters among those of its kind."""

    @property
    def ratio(self) -> float | None:
        """How many times as large the number is."""
        return self.after / self.before if self.before and self.after is not None else None


class _Number(NamedTuple):
    """A number that rows of two runs have, which may have grown."""

    what: str
    kind: type[Any]
    by: tuple[str, ...]
    value: Callable[[Any], float]
    whole: Callable[[Sequence[Any]], float]
    """What all is, of the rows of a run: less than a hundredth of it does not matter."""
    changes: tuple[str, str] = ("larger", "smaller")
    calls: Callable[[Any], float] = lambda _: 1.0
    """How often the value counts in the whole."""


_BY: Final = ("root", "path", "name", "level", "mode")
_CALLS: Final = attrgetter("calls")


def _sum_of(value: str) -> Callable[[Sequence[Any]], float]:
    return lambda rows: sum(getattr(row, value) for row in rows)


def _largest(value: str) -> Callable[[Sequence[Any]], float]:
    return lambda rows: max((getattr(row, value) for row in rows), default=0.0)


_GROWING: Final = (
    _Number(
        *("time", TimeRow, (*_BY, "direction", "clock")),
        lambda row: row.self_time / row.calls if row.calls else 0.0,
        *(_sum_of("self_time"), ("slower", "faster"), _CALLS),
    ),
    _Number("outputs", MemoryRow, _BY, attrgetter("output_bytes"), _largest("output_bytes")),
    _Number("saved", MemoryRow, _BY, attrgetter("self_saved_bytes"), _largest("saved_bytes")),
    _Number(
        *("FLOPs", FlopRow, (*_BY, "direction")),
        lambda row: row.self_flops / row.calls if row.calls else 0.0,
        *(_sum_of("self_flops"), ("larger", "smaller"), _CALLS),
    ),
)
_STATS_BY: Final = (*_BY, "direction", "leaf")


def compare(before: RunData, after: RunData, threshold: float = THRESHOLD) -> list[Difference]:
    """What differs between two runs, in their first processes, the worst first.

    Times are those of a call, without calls inside, so that a slow module does not make those
    around it slow. A time or a size counts if it changed by the threshold, and by at least a
    hundredth of what the whole model takes; the numbers in tensors, if they doubled or halved.

    Args:
        before: the first run.
        after: the second.
        threshold: the ratio from which on a time or a size has changed; above 1.
    """
    found = [
        *_not_finite(before, after),
        *_numbers(before, after, max(threshold, _NUMBERS)),
        *_parameters(before, after),
        *_modules(before, after),
        *_silent(before, after),
        *(each for measure in _GROWING for each in _grown(before, after, measure, threshold)),
    ]
    return sorted(found, key=lambda each: (CHANGES.index(each.change), -each.weight))


def totals(before: RunData, after: RunData) -> list[str]:
    """A line for each root, mode and direction: how long a pass took in both runs."""
    return [
        f"{old.root} ({old.mode}, {old.direction}): {duration(_mean(old))} → "
        f"{duration(_mean(new))} a call ({times(_mean(new) / _mean(old))})"
        for old, new in _pairs(before, after, TimeRow, (*_BY, "direction", "clock"))
        if old.path == "" and old.level == "module" and old.total_time and old.calls and new.calls
    ]


def missing(before: RunData, after: RunData) -> list[str]:
    """What only one of the runs measured, so that it can't be compared."""
    kinds = (TimeRow, MemoryRow, FlopRow, StatsRow)
    names = ("times", "memory", "FLOPs", "statistics")
    found = [
        f"only the {'first' if before.rows(kind) else 'second'} run has {name}: not compared"
        for kind, name in zip(kinds, names, strict=True)
        if bool(before.rows(kind)) != bool(after.rows(kind))
    ]
    first, second = (run.measured(_LOOKS) for run in (before, after))
    if first != second:
        looked, other = ("first", after) if first else ("second", before)
        found.append(f"only the {looked} run looked for NaN and Inf{_seen(other)}: not compared")
    return found


def _seen(run: RunData) -> str:
    """What statistics saw of NaN and Inf in a run that did not look for them."""
    places = sum(bool(row.nan or row.inf) for row in run.rows(StatsRow))
    return f" (statistics of the other saw them in {plural(places, 'place')})" if places else ""


def in_common(before: RunData, after: RunData) -> bool:
    """Whether there is a number that both runs have."""
    kinds = (TimeRow, MemoryRow, FlopRow, StatsRow, ParameterRow)
    return any(before.rows(kind) and after.rows(kind) for kind in kinds)


def _mean(row: TimeRow) -> float:
    return row.total_time / row.calls


def _index(rows: Iterable[Any], by: tuple[str, ...]) -> dict[Any, Any]:
    key = attrgetter(*by)
    return {key(row): row for row in rows}


def _pairs(
    before: RunData, after: RunData, kind: type[Any], by: tuple[str, ...]
) -> Iterator[tuple[Any, Any]]:
    """The rows that both runs have."""
    new = _index(after.rows(kind), by)
    for key, row in _index(before.rows(kind), by).items():
        if key in new:
            yield row, new[key]


def _place(row: Any) -> dict[str, Any]:
    """Where a row belongs, as a difference tells it."""
    names = ("root", "path", "name", "mode", "direction", "leaf")
    return {name: getattr(row, name, "") for name in names}


def _grown(
    before: RunData, after: RunData, measure: _Number, threshold: float
) -> Iterator[Difference]:
    """Numbers that changed by the threshold, and enough to matter."""
    whole = max(measure.whole(run.rows(measure.kind)) for run in (before, after))
    for old, new in _pairs(before, after, measure.kind, measure.by):
        low, high = sorted((measure.value(old), measure.value(new)))
        weight = (high - low) * max(measure.calls(old), measure.calls(new))
        if high >= threshold * low and high > low and weight >= _MATTERS * whole:
            grew, shrank = measure.changes
            change = grew if high == measure.value(new) else shrank
            numbers = (measure.value(old), measure.value(new))
            yield Difference(
                change,
                measure.what,
                **_place(new),
                before=numbers[0],
                after=numbers[1],
                weight=weight / whole,
            )


def _numbers(before: RunData, after: RunData, threshold: float) -> Iterator[Difference]:
    """Tensors that died, came alive, or hold much larger or smaller numbers."""
    for old, new in _pairs(before, after, StatsRow, _STATS_BY):
        if is_dead(old) != is_dead(new):
            change = "dead" if is_dead(new) else "alive"
            shares = {"before": old.zero_share, "after": new.zero_share}
            yield Difference(change, "zeros", **_place(new), **shares)
        elif not is_dead(new):
            yield from _scaled(old, new, threshold)


def _scaled(old: StatsRow, new: StatsRow, threshold: float) -> Iterator[Difference]:
    """The number that changed most, if it did by the threshold."""
    pairs = {"norm": (old.norm, new.norm), "largest": (old.abs_max, new.abs_max)}
    logs = {
        what: math.log(b / a)
        for what, (a, b) in pairs.items()
        if a > 0 and b > 0 and math.isfinite(a) and math.isfinite(b)
    }
    if logs:
        what = max(logs, key=lambda what: abs(logs[what]))
        if abs(logs[what]) >= math.log(threshold):
            change = "larger" if logs[what] > 0 else "smaller"
            low, high = pairs[what]
            place = _place(new)
            yield Difference(
                change, what, **place, before=low, after=high, weight=abs(logs[what]) / 1000
            )


def _parameters(before: RunData, after: RunData) -> Iterator[Difference]:
    """Parameters that have no gradient any more, or have one again."""
    for old, new in _pairs(before, after, ParameterRow, ("root", "name")):
        if bool(old.grad_norm) != bool(new.grad_norm):
            change = "alive" if new.grad_norm else "dead"
            norms = {"before": old.grad_norm, "after": new.grad_norm}
            yield Difference(change, "gradient", new.root, new.name, **norms)


def _not_finite(before: RunData, after: RunData) -> Iterator[Difference]:
    """What is not finite in one of two runs that both looked."""
    if not (before.measured(_LOOKS) and after.measured(_LOOKS)):
        return
    old, new = (_index(run.rows(NonFiniteRow), _STATS_BY) for run in (before, after))
    had, has = ({(m.root, m.path) for m in run.rows(ModuleRow)} for run in (before, after))
    # What is gone or never ran is told as such, and is not finite again.
    unseen = {(row.root, row.path) for row in after.rows(Silent)} | (had - has if has else set())
    for change, rows, others in (("not finite", new, old), ("finite", old, new)):
        for key, row in rows.items():
            if key not in others and not (change == "finite" and (row.root, row.path) in unseen):
                note = f"{row.verdict} {row.cause}".strip()
                # What made it matters more than what passed it on.
                weight = float(row.verdict != "propagator")
                yield Difference(change, "", **_place(row), note=note, weight=weight)


def _modules(before: RunData, after: RunData) -> Iterator[Difference]:
    """Modules that only one of the runs has; of a part of the tree, the topmost."""
    old, new = ({(m.root, m.path): m for m in run.rows(ModuleRow)} for run in (before, after))
    for change, here, there in (("gone", old, new), ("new", new, old)):
        for (root, path), row in here.items() if there else ():
            above = (root, path.rpartition(".")[0])
            is_inside = bool(path) and above in here and above not in there
            if (root, path) not in there and not is_inside:
                yield Difference(change, "", root, path, note=row.type)


def _silent(before: RunData, after: RunData) -> Iterator[Difference]:
    """Modules that ran in the first run and did not in the second."""
    old = {(row.root, row.path) for row in before.rows(Silent)}
    known = {(row.root, row.path) for row in before.rows(ModuleRow)}
    for row in after.rows(Silent):
        at = (row.root, row.path)
        if at in known and at not in old:
            yield Difference("never called", "", *at, note=f"{row.cause}; {row.advice}")
