"""The rows of a process as the HTML report holds them: small, and harmless in any page.

A table is base64 of raw deflate of

| bytes | what |
|---|---|
| 4 | the length of the next, little-endian |
| … | JSON: `{"count": …, "numbers": {column: […]}, "places": {column: […]}, "texts": […]}` |
| n | of the table of series only: the upper bytes of all their numbers, one series after another |
| n | likewise the lower bytes |

A column of texts holds places in the list `texts`, whose members are strings, tuples, booleans and
null. The table of series has `bins` instead of `packed`: how many numbers are its own.
"""

from __future__ import annotations

import base64
import json
import math
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hookline.record.rows import SeriesRow
from hookline.record.runs import Rank
from hookline.record.schema import NAMES, TABLES, columns_of

_DIGITS: Final = 12
"""So many significant digits of a number are kept: nanoseconds in up to a quarter of an hour."""
_ELSEWHERE: Final = {
    "stats": {"histogram"},
    "flops": {"operators"},
    NAMES[SeriesRow]: {"packed", "width"},
}
"""Columns that are not kept: the page does not show them; of series, they become others."""

_Floats = NDArray[np.float32]
_Columns = dict[str, list[Any]]


def packed(rank: Rank, room: int) -> dict[str, str]:
    """All rows of a process, by table; tables without rows are left out.

    Args:
        rank: the process.
        room: how many numbers of series there may be. Where there are more, 2, 4, 8 … neighbouring
            bins become one.
    """
    tables = {name: rank.rows(kind) for name, kind in TABLES.items() if rank.rows(kind)}
    return {
        name: _series(rows, room) if name == NAMES[SeriesRow] else _text(_table(name, rows))
        for name, rows in tables.items()
    }


def _text(table: Mapping[str, Any], more: bytes = b"") -> str:
    head = json.dumps(table, separators=(",", ":")).encode()
    deflate = zlib.compressobj(9, wbits=-zlib.MAX_WBITS)
    body = deflate.compress(struct.pack("<I", len(head)) + head + more) + deflate.flush()
    return base64.b64encode(body).decode()


def _table(name: str, rows: Sequence[object]) -> dict[str, Any]:
    texts: dict[object, int] = {}
    numbers: _Columns = {}
    places: _Columns = {}
    for column, kind in columns_of(name).items():
        if column in _ELSEWHERE.get(name, ()):
            continue
        values = (getattr(row, column) for row in rows)
        if kind.kind in (int, float):
            numbers[column] = [_number(value) for value in values]
        else:
            places[column] = [texts.setdefault(value, len(texts)) for value in values]
    return {"count": len(rows), "numbers": numbers, "places": places, "texts": list(texts)}


def _number(value: float | None) -> object:
    """A number as JSON can hold it; JavaScript's `Number` reads the texts."""
    if not isinstance(value, float):
        return value
    if math.isfinite(value):
        return float(f"{value:.{_DIGITS}g}")
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _series(rows: Sequence[SeriesRow], room: int) -> str:
    step = _step([len(row.packed) // 4 for row in rows], room)
    numbers, bins = _joined(rows, step)
    table = _table(NAMES[SeriesRow], rows)
    table["numbers"] |= {"bins": bins, "width": [row.width * step for row in rows]}
    halves = _upper_halves(numbers).astype("<u2").view(np.uint8)
    return _text(table, halves[1::2].tobytes() + halves[::2].tobytes())


def _step(lengths: Sequence[int], room: int) -> int:
    """How many bins become one: the smallest power of two with which all series fit."""
    step = 1
    while sum(-(-length // step) for length in lengths) > room and step < max(lengths):
        step *= 2
    return step


def _joined(rows: Sequence[SeriesRow], step: int) -> tuple[_Floats, list[int]]:
    """The numbers of all series, and how many are of each."""
    merge = {"abs_max": np.fmax.reduce, "nonfinite": np.nansum}
    parts = [_merged(row, step, merge.get(row.metric, np.nanmean)) for row in rows]
    return np.concatenate(parts), [len(part) for part in parts]


def _merged(row: SeriesRow, step: int, merge: Callable[..., Any]) -> _Floats:
    """The bins of a series, some at a time as one: their largest, their sum or their mean."""
    bins = np.frombuffer(row.packed, "<f4")
    if step == 1:
        return bins
    filled = np.full((-(-len(bins) // step), step), np.nan, np.float32)
    filled.reshape(-1)[: len(bins)] = bins
    known = ~np.isnan(filled).all(axis=1)
    merged = np.full(len(filled), np.nan, np.float32)
    merged[known] = merge(filled[known], axis=1)
    return merged


def _upper_halves(numbers: _Floats) -> NDArray[np.uint32]:
    """The nearest floats of 16 bits with the range of float32 and 8 bits of precision: bfloat16."""
    bits = np.ascontiguousarray(numbers).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(numbers), np.uint32(0x7FC0), rounded)
