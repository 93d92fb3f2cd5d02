"""A run as plain data: all its rows as JSON, or those of one table as CSV."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from hookline.core.records import TimeRow
from hookline.record.rows import SeriesRow
from hookline.record.runs import RunData
from hookline.record.schema import TABLES, VERSION


def to_dict(row: Any) -> dict[str, Any]:
    """A row as plain data that JSON knows: bins as a list, and None for what is not finite.

    Example:
        >>> from hookline.record.rows import PassRow
        >>> to_dict(PassRow("Net", "train", 60, 59))
        {'root': 'Net', 'mode': 'train', 'passes': 60, 'last': 59}
    """
    found = {field.name: getattr(row, field.name) for field in fields(row)}
    if isinstance(row, SeriesRow):
        del found["packed"]
        found["values"] = row.values
    return {name: _plain(value) for name, value in found.items()}


def to_json(run: RunData) -> dict[str, Any]:
    """A run as plain data: the version of the schema, and for each process all its tables."""
    return {
        "format": "hookline run",
        "schema": VERSION,
        "ranks": [
            {name: [to_dict(row) for row in rank.rows(kind)] for name, kind in TABLES.items()}
            for rank in run.ranks
        ],
    }


def write_json(run: RunData, path: Path) -> None:
    """Write all rows of all processes, as `to_json` gives them."""
    path.write_text(json.dumps(to_json(run), allow_nan=False), encoding="utf-8")


def write_csv(run: RunData, path: Path) -> None:
    """Write a table to a file, and each of the others next to it.

    Args:
        run: the run.
        path: of the table of times; `run.csv` has the others at its side as `run.stats.csv` and so
            on, those that have rows.
    """
    for name, kind in TABLES.items():
        rows = [
            to_dict(row) | {"rank": rank.info.rank} for rank in run.ranks for row in rank.rows(kind)
        ]
        if kind is TimeRow:
            _write_table(rows, [field.name for field in fields(TimeRow)], path)
        elif rows:
            _write_table(rows, list(rows[0]), path.with_suffix(f".{name}.csv"))


def _write_table(rows: Iterable[Mapping[str, Any]], names: list[str], path: Path) -> None:
    names = [*(name for name in names if name != "rank"), "rank"]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows({n: _cell(row[n]) for n in names} for row in rows)


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
