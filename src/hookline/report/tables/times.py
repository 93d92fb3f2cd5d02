"""Where time went."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import Final

from hookline.core.records import TimeRow
from hookline.record.runs import RunData
from hookline.report.tables.directed import Quantity, directed_sheets
from hookline.report.tables.sheet import Sheet
from hookline.report.tables.units import duration

_TIME: Final = Quantity(
    lambda row: "device time" if row.clock == "device" else "time",
    attrgetter("self_time"),
    attrgetter("total_time"),
    duration,
    ("mode", "clock"),
)


def sheets(run: RunData) -> Iterator[Sheet]:
    """A table of modules for each root and mode, then one of functions for each mode."""
    return directed_sheets(run.rows(TimeRow), _TIME)
