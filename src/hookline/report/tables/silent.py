"""Modules that were watched and never ran, and why."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from hookline.core.records import Silent
from hookline.record.runs import RunData
from hookline.report.tables.sheet import Column, Line, Sheet
from hookline.report.tables.units import plural

_COLUMNS: Final = (
    Column("type", number=False),
    Column("how many"),
    Column("cause", number=False),
    Column("advice", number=False),
)


def sheets(run: RunData) -> Iterator[Sheet]:
    """One table; what is alike stands in one line, and containers, which never run, come last."""
    rows = run.rows(Silent)
    groups = sorted(_groups(rows), key=lambda group: group[0].cause == "no forward")
    if groups:
        lines = [_line(group, -place) for place, group in enumerate(groups)]
        title = f"never called: {plural(len(rows), 'module')}"
        yield Sheet(title, "module", _COLUMNS, lines).tidied()


def _groups(rows: Iterable[Silent]) -> list[list[Silent]]:
    """Rows that differ in the numbers of their paths only, without what is inside of others."""
    groups: dict[tuple[str, ...], list[Silent]] = {}
    home: dict[tuple[str, str], list[Silent]] = {}
    for row in rows:
        above = home.get((row.root, row.path.rpartition(".")[0])) if row.path else None
        if above is not None and above[0].cause == row.cause != "no forward":
            group = above
        else:
            key = (row.root, _masked(row.path), row.type, row.cause)
            group = groups.setdefault(key, [])
        group.append(row)
        home[row.root, row.path] = group
    return list(groups.values())


def _masked(path: str) -> str:
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", path)


def _line(group: list[Silent], weight: int) -> Line:
    row = group[0]
    alike = {each.path for each in group if _masked(each.path) == _masked(row.path)}
    path = _masked(row.path) if len(alike) > 1 else row.path
    count = len(group) if len(group) > 1 else None
    values = (row.type, count, row.cause, row.advice)
    return Line(f"{row.root} {path}".strip(), values, weight=weight)
