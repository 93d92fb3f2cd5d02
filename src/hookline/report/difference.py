"""What differs between two runs, in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from hookline.core.names import full_name
from hookline.record.runs import RunData
from hookline.report.compare import (
    CHANGES,
    THRESHOLD,
    Difference,
    compare,
    in_common,
    missing,
    totals,
)
from hookline.report.tables.sheet import Column, Line, Sheet
from hookline.report.tables.units import amount, duration, number, percent, size, times
from hookline.report.terminal import LINES, Stream, console_for, print_lines, print_sheet


def sheet(differences: Iterable[Difference]) -> Sheet:
    """The differences as a table."""
    lines = [_line(each, -place) for place, each in enumerate(differences)]
    return Sheet("what changed", "module", _COLUMNS, lines).tidied()


def print_difference(
    before: RunData,
    after: RunData,
    threshold: float = THRESHOLD,
    file: Stream | None = None,
    *,
    limit: int | None = LINES,
) -> None:
    """Print what differs between two runs.

    Args:
        before: the first run.
        after: the second.
        threshold: the ratio from which on a time or a size has changed.
        file: where to; stdout by default.
        limit: how many lines the table may have; None for all.
    """
    console = console_for(file)
    print_lines([*totals(before, after), ""], console)
    found = compare(before, after, threshold)
    if found:
        print_sheet(sheet(found).cut(limit), console)
    elif in_common(before, after):
        print_lines([f"nothing changed by {times(threshold)} or more"], console)
    else:
        print_lines(["these runs have no table of numbers in common"], console)
    print_lines((f"hookline: {text}" for text in missing(before, after)), console)


_SHOW: Final[dict[str, Callable[[float], str]]] = {
    "time": duration,
    "outputs": size,
    "saved": size,
    "FLOPs": amount,
    "zeros": percent,
}
_COLUMNS: Final = (
    Column("change", number=False),
    Column("what", number=False),
    Column("mode", number=False, spare=1),
    Column("direction", number=False),
    Column("leaf", number=False, spare=1),
    Column("before"),
    Column("after"),
    Column("ratio", times),
    Column("note", number=False),
)


def _line(found: Difference, weight: int) -> Line:
    show = _SHOW.get(found.what, number)
    numbers = [None if each is None else show(each) for each in (found.before, found.after)]
    place = (found.mode, found.direction, found.leaf)
    values = (found.change, found.what, *place, *numbers, found.ratio, found.note)
    style = "bold red" if CHANGES.index(found.change) < CHANGES.index("slower") else ""
    return Line(full_name(found), values, weight=weight, style=style)
