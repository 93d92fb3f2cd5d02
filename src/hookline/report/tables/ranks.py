"""How the times of several processes differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hookline.core.names import where
from hookline.record.merge import RankRow, over_ranks
from hookline.record.runs import RunData
from hookline.report.tables.sheet import Column, Line, Sheet, split
from hookline.report.tables.units import duration, times

_COLUMNS: Final = (
    Column("direction", number=False),
    Column("minimum", duration),
    Column("median", duration),
    Column("maximum", duration),
    Column("ratio", times),
    Column("slowest rank"),
    Column("ranks", spare=1),
)


def sheets(run: RunData) -> Iterator[Sheet]:
    """A table for each root and mode: the time of a call, calls inside included, over ranks."""
    for part in split(over_ranks(run), by=("level", "root", "mode")):
        first = part[0]
        title = f"a call's time over ranks: {first.root or 'outside modules'} ({first.mode})"
        lines = sorted(map(_line, part), key=lambda line: line.weight, reverse=True)
        yield Sheet(title, first.level, _COLUMNS, lines).tidied()


def _line(row: RankRow) -> Line:
    ratio = row.maximum / row.minimum if row.minimum else None
    spread = (row.minimum, row.median, row.maximum)
    values = (row.direction, *spread, ratio, row.slowest, row.ranks)
    return Line(where(row), values, weight=(row.maximum - row.minimum) * row.calls)
