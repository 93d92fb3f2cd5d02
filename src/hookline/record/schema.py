"""The tables of a run file: one for each kind of row, its columns the row's fields.

| in Python | in SQLite |
|---|---|
| `str`, `int`, `float`, `bytes` | `TEXT`, `INTEGER`, `REAL`, `BLOB`; a float that is NaN is NULL |
| `bool` | `INTEGER`, 0 or 1 |
| a tuple | `TEXT`, as JSON |
| `None` | NULL |
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from hookline.core.records import (
    FlopRow,
    MemoryRow,
    NonFiniteRow,
    ParameterRow,
    Silent,
    StatsRow,
    TimeRow,
    UncountedRow,
)
from hookline.record.rows import EventRow, FaultRow, ModuleRow, PassRow, RunRow, SeriesRow

RowT = TypeVar("RowT")

VERSION: Final = 1
"""The version of the schema, `PRAGMA user_version` of the file."""

APPLICATION: Final = 0x686F6F6B
"""What marks a file as a run: `hook` in ASCII, `PRAGMA application_id` of the file."""

TABLES: Final[Mapping[str, type[Any]]] = {
    "run": RunRow,
    "modules": ModuleRow,
    "passes": PassRow,
    "times": TimeRow,
    "memory": MemoryRow,
    "flops": FlopRow,
    "uncounted": UncountedRow,
    "stats": StatsRow,
    "parameters": ParameterRow,
    "nonfinite": NonFiniteRow,
    "silent": Silent,
    "series": SeriesRow,
    "events": EventRow,
    "faults": FaultRow,
}
"""The tables, and the class of their rows."""

NAMES: Final[Mapping[type[Any], str]] = {row: name for name, row in TABLES.items()}
"""The table of each class of rows."""

_TYPES: Final = {str: "TEXT", int: "INTEGER", float: "REAL", bytes: "BLOB", bool: "INTEGER"}


class Column(NamedTuple):
    """What Python calls that which is in a column."""

    kind: type[Any]
    optional: bool

    def from_sql(self, value: Any) -> Any:
        """What SQLite gave, as it was."""
        if value is None:
            return None if self.optional or self.kind is not float else math.nan
        if self.kind is tuple:
            return _tuples(json.loads(value))
        return bool(value) if self.kind is bool else value


def create(name: str) -> str:
    """The statement that makes a table."""
    columns = columns_of(name).items()
    listed = ", ".join(f'"{each}" {_TYPES.get(column.kind, "TEXT")}' for each, column in columns)
    return f'CREATE TABLE "{name}" ({listed})'


def insert(name: str) -> str:
    """The statement that adds a row, with a place for each column."""
    columns = columns_of(name)
    names, places = ", ".join(f'"{each}"' for each in columns), ", ".join("?" * len(columns))
    return f'INSERT INTO "{name}" ({names}) VALUES ({places})'  # noqa: S608 - names of our own


@cache
def columns_of(name: str) -> dict[str, Column]:
    """The columns of a table."""
    hints = get_type_hints(TABLES[name])
    return {field.name: _column(hints[field.name]) for field in fields(TABLES[name])}


def to_sql(name: str, row: object) -> tuple[object, ...]:
    """A row as SQLite takes it."""
    return tuple(_to_sql(getattr(row, column)) for column in columns_of(name))


def reader(kind: type[RowT], present: Sequence[str]) -> Callable[[tuple[Any, ...]], RowT]:
    """What makes rows of what SQLite gives.

    Args:
        kind: the class of the rows.
        present: the columns as they come; what is missing has its default, what is unknown is
            left out: a file of an older version may differ in these.
    """
    columns = columns_of(NAMES[kind])
    known = [(place, name, columns[name]) for place, name in enumerate(present) if name in columns]

    def read(values: tuple[Any, ...]) -> RowT:
        return kind(**{name: column.from_sql(values[place]) for place, name, column in known})

    return read


def _column(hint: Any) -> Column:
    kinds = [each for each in get_args(hint) if each is not NoneType]
    if isinstance(hint, UnionType):
        return Column(get_origin(kinds[0]) or kinds[0], optional=True)
    return Column(get_origin(hint) or hint, optional=False)


def _to_sql(value: object) -> object:
    if isinstance(value, tuple):
        return json.dumps(value)
    return None if isinstance(value, float) and math.isnan(value) else value


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
