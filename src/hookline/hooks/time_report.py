"""The plain table that a timer prints: Chainer's three columns, then ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

from hookline.core.stream import Writable, print_to
from hookline.errors import HookValueError
from hookline.hooks.measuring import NOTHING

Unit: TypeAlias = Literal["sec", "ms", "us", "ns", "auto", "auto_foreach"]
UNITS: Final = {"sec": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def print_times(
    title: str, summary: Mapping[str, Mapping[str, Any]], unit: Unit, file: Writable | None
) -> None:
    """Print a summary of times.

    Args:
        title: the head of the first column.
        summary: what a timer's `summary` gives.
        unit: a unit, `auto` for one for all times, `auto_foreach` for one for each.
        file: where to; standard output by default.

    Raises:
        HookValueError: the unit is unknown.
    """
    if unit not in (*UNITS, "auto", "auto_foreach"):
        msg = f"{unit!r} is no unit; choose one of {', '.join(UNITS)}, auto or auto_foreach"
        raise HookValueError(msg)
    if not summary:
        print_to(file, f"TimerHook: there is nothing to show{NOTHING}\n")
        return
    longest = max(row["elapsed_time"] for row in summary.values())
    shown = _fitting(longest) if unit == "auto" else unit
    rows = [(title, "ElapsedTime", "Occurrence", "SelfTime", "Forward", "Backward")]
    rows += [_cells(name, row, shown) for name, row in summary.items()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.rjust, row, widths)) for row in rows)
    print_to(file, "".join(f"{line}\n" for line in lines))


def _cells(name: str, row: Mapping[str, Any], unit: str) -> tuple[str, ...]:
    forward = row.get("forward", {}).get("total_time", 0.0)
    backward = row.get("backward", {}).get("total_time", 0.0)
    return (
        name,
        _time(row["elapsed_time"], unit),
        str(row["occurrence"]),
        _time(row["self_time"], unit),
        _time(forward, unit),
        _time(backward, unit),
    )


def _time(seconds: float, unit: str) -> str:
    if unit == "auto_foreach":
        unit = _fitting(seconds)
    return f"{seconds / UNITS[unit]:3.2f}{unit}"


def _fitting(seconds: float) -> str:
    return next((unit for unit, size in UNITS.items() if seconds >= size), "ns")
