"""Tables with a column for each direction: what calls took in all, and without those inside."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hookline.report.tables.groups import by_level, lines_of
from hookline.report.tables.sheet import Column, Sheet
from hookline.report.tables.units import percent

_DIRECTIONS = ("forward", "backward", "recompute")


@dataclass(frozen=True, slots=True)
class Quantity:
    """What is shown of rows that have a direction."""

    name: Callable[[Any], str]
    """What it is called, for a row of the table."""
    own: Callable[[Any], float]
    """What the calls of a row took without the calls inside them."""
    total: Callable[[Any], float]
    """What they took, the calls inside included."""
    show: Callable[[Any], str]
    """How it is written."""
    apart: tuple[str, ...] = ("mode",)
    """The fields by which rows stand in tables of their own."""


def directed_sheets(rows: Sequence[Any], what: Quantity) -> Iterator[Sheet]:
    """A table of modules for each root and mode, then one of functions for each mode.

    A module's share is its forward and backward, calls inside it included, of its root's; a
    function's that of all functions in its table.
    """
    return by_level(rows, what.apart, partial(_sheet, what))


def _sheet(what: Quantity, level: str, title: str, rows: Sequence[Any]) -> Sheet:
    whole = _whole(rows, what) if level == "module" else sum(map(what.own, rows))
    measured = {row.direction for row in rows}
    ways = [way for way in _DIRECTIONS if way in measured]
    # Most functions do not nest.
    nests = level == "module" or any(what.own(row) != what.total(row) for row in rows)

    def values(part: list[Any]) -> list[Any]:
        found: list[Any] = [next((row.type for row in part if row.type), "")]
        by_way = [[row for row in part if row.direction == way] for way in ways]
        found.append(next((sum(row.calls for row in each) for each in by_way if each), None))
        for way, each in zip(ways, by_way, strict=True):
            found.append(sum(map(what.total, each)) if each else None)
            if nests and way != "recompute":
                found.append(sum(map(what.own, each)) if each else None)
        return [*found, both_ways(part) / whole if whole else None]

    def both_ways(part: list[Any]) -> float:
        # What was recomputed is part of the backward that needed it.
        return sum(what.total(row) for row in part if row.direction != "recompute")

    lines = lines_of(level, rows, values, both_ways)
    title = f"{what.name(rows[0])} {title}"
    return Sheet(title, level, _columns(ways, what, nests=nests), lines).tidied()


def _columns(ways: Sequence[str], what: Quantity, *, nests: bool) -> list[Column]:
    columns = [Column("type", number=False, spare=1), Column("calls")]
    for way in ways:
        columns.append(Column(way, what.show))
        if nests and way != "recompute":
            columns.append(Column(f"{way} self", what.show, spare=2, heading="self"))
    return [*columns, Column("share", percent)]


def _whole(rows: Sequence[Any], what: Quantity) -> float:
    """The forward and backward of a root.

    Where it has no row of its own, since only parts were watched: all that was measured in it.
    """
    roots = [row for row in rows if row.path == "" and row.direction != "recompute"]
    return sum(map(what.total, roots)) if roots else sum(map(what.own, rows))
