"""The numbers in activations and their gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hookline.core.names import where
from hookline.core.records import StatsRow
from hookline.record.runs import RunData
from hookline.report.tables.sheet import Column, Line, Sheet, split
from hookline.report.tables.units import known, number, percent

_DEAD: Final = 0.999
_COLUMNS: Final = (
    Column("leaf", number=False),
    Column("calls", spare=1),
    Column("mean", number),
    Column("std", number),
    Column("abs max", number),
    Column("norm", number),
    Column("zeros", percent),
    Column("NaN", lambda count: f"{count:,}"),
    Column("Inf", lambda count: f"{count:,}"),
)


def sheets(run: RunData) -> Iterator[Sheet]:
    """A table for each root, mode and direction; what is not finite or all zero matters most."""
    for part in split(run.rows(StatsRow), by=("level", "root", "mode", "direction")):
        first = part[0]
        what = "activations" if first.direction == "forward" else "gradients"
        title = f"{what} by {first.level}: {first.root or 'outside modules'} ({first.mode})"
        lines = [_line(row) for row in part]
        yield Sheet(title, first.level, _COLUMNS, lines).tidied()


def is_dead(row: StatsRow) -> bool:
    """Whether as good as all values are zero."""
    return bool(row.count) and row.zero_share >= _DEAD


def _line(row: StatsRow) -> Line:
    bad = row.nan + row.inf
    dead = is_dead(row)
    style = "bold red" if bad else "yellow" if dead else ""
    numbers = map(known, (row.mean, row.std, row.abs_max, row.norm, row.zero_share))
    values = (row.leaf, row.calls, *numbers, row.nan or None, row.inf or None)
    return Line(where(row), values, weight=(bad, dead), style=style)
