"""Tables with a column for each direction: what calls took in all, and without those inside."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hookline.report.tables.groups import function_lines, module_lines
from hookline.report.tables.sheet import Column, Sheet, split
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
    modules = [row for row in rows if row.level == "module"]
    for part in split(modules, by=("root", *what.apart)):
        title = f"{what.name(part[0])} by module: {part[0].root} ({part[0].mode})"
        yield _sheet("module", title, part, what, _whole(part, what))
    functions = [row for row in rows if row.level == "function"]
    for part in split(functions, by=what.apart):
        title = f"{what.name(part[0])} by function ({part[0].mode})"
        yield _sheet("function", title, part, what, sum(map(what.own, part)))


def _sheet(first: str, title: str, rows: Sequence[Any], what: Quantity, whole: float) -> Sheet:
    measured = {row.direction for row in rows}
    ways = [way for way in _DIRECTIONS if way in measured]
    # Most functions do not nest.
    nests = first == "module" or any(what.own(row) != what.total(row) for row in rows)

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

    if first == "module":
        lines = module_lines(rows, rows[0].root, values, both_ways)
    else:
        lines = function_lines(rows, values, both_ways)
    return Sheet(title, first, _columns(ways, what, nests=nests), lines).tidied()


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
