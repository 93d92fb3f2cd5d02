"""What modules and functions hold in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from hookline.core.records import MemoryRow
from hookline.record.runs import RunData
from hookline.report.tables.groups import by_level, lines_of
from hookline.report.tables.sheet import Column, Sheet
from hookline.report.tables.units import size

_COLUMNS: Final = (
    Column("type", number=False, spare=1),
    Column("calls"),
    Column("outputs", size),
    Column("saved", size),
    Column("saved self", size, spare=2, heading="self"),
    Column("packed", spare=3),
    Column("parameters", size, spare=3),
    Column("gradients", size, spare=3),
    Column("allocated", size),
    Column("peak", size),
)


def sheets(run: RunData) -> Iterator[Sheet]:
    """A table of modules for each root and mode, then one of functions for each mode.

    Outputs and what is saved for the backward are those of the largest pass.
    """
    return by_level(run.rows(MemoryRow), ("mode",), _sheet)


def _sheet(level: str, title: str, rows: Sequence[Any]) -> Sheet:
    return Sheet(
        f"memory {title}", level, _COLUMNS, lines_of(level, rows, _values, _weight)
    ).tidied()


def _values(rows: list[Any]) -> list[Any]:
    # Where another module took the place of one, the larger is shown.
    row = max(rows, key=lambda row: _weight([row]))
    return [
        row.type,
        sum(each.calls for each in rows),
        row.output_bytes,
        row.saved_bytes,
        row.self_saved_bytes,
        row.packed or None,
        row.parameter_bytes,
        row.gradient_bytes,
        row.allocated_bytes,
        row.peak_bytes,
    ]


def _weight(rows: list[Any]) -> int:
    return max(row.output_bytes + row.saved_bytes for row in rows)
