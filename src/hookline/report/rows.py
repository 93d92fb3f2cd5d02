"""Tables of rows that belong to no run, as a hook gives them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hookline.record.rows import RunRow
from hookline.record.runs import Rank, RunData
from hookline.report.terminal import Stream, console_for, print_lines, print_sheet, sheets_of


def print_rows(name: str, rows: Iterable[Any], empty: str, file: Stream | None = None) -> None:
    """Print tables of rows, each kind of them in the tables that it has in a run.

    Args:
        name: that of the hook that gives them.
        rows: the rows.
        empty: why there may be none.
        file: where to; stdout by default.
    """
    tables: dict[type[Any], list[Any]] = {RunRow: [RunRow("", (), "running", 0.0, 0.0)]}
    for row in rows:
        tables.setdefault(type(row), []).append(row)
    sheets = list(sheets_of(RunData([Rank(Path(), tables)])))
    console = console_for(file)
    for sheet in sheets:
        print_sheet(sheet, console)
    if not sheets:
        print_lines([f"{name}: there is nothing to show{empty}"], console)
