"""Which modules and functions make the FLOPs, and which operators could not be counted."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import Final

from hookline.core.names import full_name
from hookline.core.records import FlopRow, UncountedRow
from hookline.record.runs import RunData
from hookline.report.tables.directed import Quantity, directed_sheets
from hookline.report.tables.sheet import Column, Line, Sheet
from hookline.report.tables.units import amount

_FLOPS: Final = Quantity(
    lambda _: "FLOPs", attrgetter("self_flops"), attrgetter("total_flops"), amount
)


def sheets(run: RunData) -> Iterator[Sheet]:
    """As for times; then the operators whose FLOPs are not known."""
    yield from directed_sheets(run.rows(FlopRow), _FLOPS)
    rows = run.rows(UncountedRow)
    if rows:
        lines = [
            Line(
                full_name(row),
                (row.operator, row.mode, row.direction, row.calls, row.reason),
                weight=row.calls,
            )
            for row in rows
        ]
        yield Sheet("FLOPs that are not known", "of", _UNCOUNTED, lines)


_UNCOUNTED: Final = (
    Column("operator", number=False),
    Column("mode", number=False, spare=1),
    Column("direction", number=False, spare=2),
    Column("calls"),
    Column("reason", number=False),
)
