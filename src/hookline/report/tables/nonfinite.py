"""Where NaN and Inf came from."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from hookline.core.names import full_name
from hookline.core.records import NonFiniteRow
from hookline.record.merge import rows_of_all
from hookline.record.runs import RunData
from hookline.report.tables.sheet import Column, Line, Sheet

_ORDER: Final = ("producer", "bad parameter", "propagator")
_COLUMNS: Final = (
    Column("rank"),
    Column("direction", number=False),
    Column("verdict", number=False),
    Column("cause", number=False),
    Column("leaf", number=False),
    Column("values", number=False),
    Column("pass"),
    Column("step"),
    Column("calls"),
)


def sheets(run: RunData) -> Iterator[Sheet]:
    """One table of all processes: what made NaN and Inf first, what passed them on last."""
    rows = rows_of_all(run, NonFiniteRow)
    rows.sort(key=lambda each: _key(each[1]))
    if rows:
        several = len(run.ranks) > 1
        lines = [
            _line(row, rank if several else None, -place) for place, (rank, row) in enumerate(rows)
        ]
        yield Sheet("NaN and Inf", "module", _COLUMNS, lines).tidied()


def _key(row: NonFiniteRow) -> tuple[int, int, bool]:
    return _ORDER.index(row.verdict), row.pass_number, row.direction == "backward"


def _line(row: NonFiniteRow, rank: int | None, weight: int) -> Line:
    seen = (row.direction, row.verdict, row.cause, row.leaf, _values(row))
    values = (rank, *seen, row.pass_number, row.step, row.times)
    style = "" if row.verdict == "propagator" else "bold red"
    return Line(full_name(row), values, weight=weight, style=style)


def _values(row: NonFiniteRow) -> str:
    """How many of how many, and of what type."""
    counts = [f"{count:,} {what}" for count, what in ((row.nan, "NaN"), (row.inf, "Inf")) if count]
    found = ", ".join(counts) or "some"
    skipped = "; step skipped by the scaler" if row.skipped else ""
    return f"{found} of {math.prod(row.shape):,} {row.dtype}{skipped}"
