"""How parameters are updated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hookline.core.records import ParameterRow
from hookline.record.runs import RunData
from hookline.report.tables.sheet import Column, Line, Sheet, split
from hookline.report.tables.units import known, number

_COLUMNS: Final = (
    Column("shape", number=False, spare=1),
    Column("steps", spare=1),
    Column("weight norm", number),
    Column("gradient norm", number),
    Column("largest", number, spare=2),
    Column("update ratio", number),
    Column("not finite"),
    Column("note", number=False),
)


def sheets(run: RunData) -> Iterator[Sheet]:
    """A table for each root and optimizer; gradients that are not finite matter most."""
    for part in split(run.rows(ParameterRow), by=("root", "optimizer")):
        title = f"parameters: {part[0].root} ({part[0].optimizer})"
        yield Sheet(title, "parameter", _COLUMNS, [_line(row) for row in part]).tidied()


def _line(row: ParameterRow) -> Line:
    shape = "×".join(map(str, row.shape)) or "one number"
    notes = [row.note, "tied to " + ", ".join(row.ties) if row.ties else ""]
    norms = map(known, (row.weight_norm, row.grad_norm, row.grad_norm_max, row.update_ratio))
    values = (shape, row.steps, *norms, row.nonfinite or None, "; ".join(filter(None, notes)))
    style = "bold red" if row.nonfinite else ""
    return Line(row.name, values, weight=(row.nonfinite, known(row.grad_norm) or 0.0), style=style)
