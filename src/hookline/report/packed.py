"""The rows of a process as the HTML report holds them: small, and harmless in any page.

One text: base64 of raw deflate of

| bytes | what |
|---|---|
| 4 | the length of the next, little-endian |
| … | JSON: `{"texts": […], "tables": {name: {"count", "numbers": {column: […]}, "texts": {…}}}}` |
| n | the upper bytes of the numbers of all series, one series behind the other |
| n | their lower bytes |

A column of texts holds places in the list `texts`, whose members are strings, tuples, booleans and
null. The table of series has `bins` instead of `packed`: how many numbers are its own.
"""

from __future__ import annotations

import base64
import json
import math
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hookline.record.rows import SeriesRow
from hookline.record.runs import Rank
from hookline.record.schema import NAMES, TABLES, Column, columns_of

_DIGITS: Final = 12
"""So many significant digits of a number are kept: nanoseconds in up to a quarter of an hour."""
_SERIES: Final = NAMES[SeriesRow]
_ELSEWHERE: Final = {"stats": {"histogram"}, _SERIES: {"packed"}}
"""Columns that are not kept as such: the page does not show histograms."""

_Floats = NDArray[np.float32]


def packed(rank: Rank, room: int) -> str:
    """All rows of a process.

    Args:
        rank: the process.
        room: how many numbers of series there may be. Where there are more, 2, 4, 8 … neighbouring
            bins become one.
    """
    series = rank.rows(SeriesRow)
    step = _step([len(row.packed) // 4 for row in series], room)
    numbers, bins = _joined(series, step)
    texts: dict[object, int] = {}
    tables = {name: _table(name, rank.rows(kind), texts) for name, kind in TABLES.items()}
    tables[_SERIES]["numbers"]["bins"] = bins
    tables[_SERIES]["numbers"]["width"] = [row.width * step for row in series]
    head = json.dumps({"texts": list(texts), "tables": tables}, separators=(",", ":")).encode()
    halves = _upper_halves(numbers)
    planes = (halves >> 8).astype(np.uint8).tobytes() + halves.astype(np.uint8).tobytes()
    deflate = zlib.compressobj(9, wbits=-zlib.MAX_WBITS)
    body = deflate.compress(struct.pack("<I", len(head)) + head + planes) + deflate.flush()
    return base64.b64encode(body).decode()


def _table(name: str, rows: Sequence[object], texts: dict[object, int]) -> dict[str, Any]:
    numbers: dict[str, list[object]] = {}
    places: dict[str, list[int]] = {}
    for column, kind in _kept(name).items():
        values = (getattr(row, column) for row in rows)
        if kind.kind in (int, float):
            numbers[column] = [_number(value) for value in values]
        else:
            places[column] = [texts.setdefault(value, len(texts)) for value in values]
    return {"count": len(rows), "numbers": numbers, "texts": places}


def _kept(name: str) -> Mapping[str, Column]:
    without = _ELSEWHERE.get(name, set[str]())
    return {column: kind for column, kind in columns_of(name).items() if column not in without}


def _number(value: float | None) -> object:
    """A number as JSON can hold it; JavaScript's `Number` reads the texts."""
    if not isinstance(value, float):
        return value
    if math.isfinite(value):
        return float(f"{value:.{_DIGITS}g}")
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _step(lengths: Iterable[int], room: int) -> int:
    """How many bins become one: the smallest power of two with which all series fit."""
    lengths = list(lengths)
    longest, step = max(lengths, default=1), 1
    while sum(-(-length // step) for length in lengths) > room and step < longest:
        step *= 2
    return step


def _joined(series: Sequence[SeriesRow], step: int) -> tuple[_Floats, list[int]]:
    """The numbers of all series, and how many are of each."""
    parts = [np.frombuffer(row.packed, "<f4") for row in series]
    bins = [-(-len(part) // step) for part in parts]
    filled = np.full((sum(bins), step), np.nan, np.float32)
    flat, begin = filled.reshape(-1), 0
    for part, count in zip(parts, bins, strict=True):
        flat[begin : begin + len(part)] = part
        begin += count * step
    metrics = np.repeat(np.array([row.metric for row in series], str), bins)
    return (filled[:, 0] if step == 1 else _merged(filled, metrics)), bins


def _merged(bins: _Floats, metrics: NDArray[np.str_]) -> _Floats:
    """Each row of bins as one: the largest of maxima, the sum of counts, the mean of all else."""
    there = ~np.isnan(bins)
    counts, sums = there.sum(axis=1), np.where(there, bins, 0).sum(axis=1)
    largest = np.where(there, bins, -np.inf).max(axis=1)
    means = sums / np.maximum(counts, 1)
    merged = np.select([metrics == "abs_max", metrics == "nonfinite"], [largest, sums], means)
    return np.where(counts > 0, merged, np.nan).astype(np.float32)


def _upper_halves(numbers: _Floats) -> NDArray[np.uint32]:
    """Floats of 16 bits with the range of float32 and 8 bits of precision (bfloat16), rounded."""
    bits = np.ascontiguousarray(numbers).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(numbers), np.uint32(0x7FC0), rounded)
