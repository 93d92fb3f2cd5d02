"""Time of every module or function: forward and backward, with and without what is inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch

from hookline.core.records import TimeRow
from hookline.core.stream import Writable
from hookline.errors import HookValueError
from hookline.hooks.brackets import FunctionBrackets, ModuleBrackets
from hookline.hooks.measuring import Measuring
from hookline.hooks.meter import Timed, TimeMeter
from hookline.hooks.subject import Subject, subject_of
from hookline.hooks.time_report import Unit, print_times


class Timer(Measuring[TimeRow, TimeMeter]):
    """What the timers of both levels have in common."""

    timed: ClassVar[bool] = True
    _title: ClassVar[str]

    def __init__(self, history: int = 10_000, clock: str = "auto") -> None:
        self._meter = TimeMeter(history, _new_event(clock))
        self._end = self._meter.end
        self._registered = 0

    def added(self, target: Any) -> None:
        """Count where the hook is."""
        self._registered += 1

    def deleted(self, target: Any) -> None:
        """Where the hook is removed inside of calls, their times have no end."""
        self._registered -= 1
        if target is not None or not self._registered:  # a module that is gone runs no more
            self._meter.drop_running()

    @property
    def call_history(self) -> list[tuple[str, float]]:
        """`(name, seconds)` of the latest calls, inner ones before those around them."""
        self._meter.settle()
        return [(what.label, duration / 1e9) for what, duration in list(self._meter.history)]

    def total_time(self) -> float:
        """The time in seconds of the outermost calls; those inside are part of them."""
        self._meter.settle()
        return self._meter.outermost / 1e9

    def slowest(self) -> tuple[Subject, float] | None:
        """What took most time of its own so far, and its share of all; waits for no device."""
        return self._meter.slowest()

    def summary(self) -> dict[str, dict[str, Any]]:
        """What was measured, by name.

        Returns:
            For each name `elapsed_time` (seconds, calls inside included) and `occurrence`
            (forwards and backwards) as in Chainer; `self_time`, without the calls inside; and
            for each direction that occurred a dict with `calls`, `total_time`, `self_time`,
            `minimum`, `median` and `maximum`. What has one name is added up; the median is then
            that of the row with most calls. Functions go by their name; modules by their path,
            the root by its own name, with the root's in front where two share a path.
        """
        rows = self.rows()
        found: dict[str, dict[str, Any]] = {}
        for name, row in zip(_names_of(rows), rows, strict=True):
            entry = found.setdefault(name, {"elapsed_time": 0.0, "occurrence": 0, "self_time": 0.0})
            entry["elapsed_time"] += row.total_time
            entry["occurrence"] += row.calls
            entry["self_time"] += row.self_time
            entry[row.direction] = _added(entry.get(row.direction), row)
        return found

    def print_report(  # pyright: ignore[reportIncompatibleMethodOverride] - as Chainer's
        self, unit: Unit = "auto", file: Writable | None = None
    ) -> None:
        """Print a table of what was measured: Chainer's three columns, then ours.

        Args:
            unit: `sec`, `ms`, `us` or `ns`; `auto` for one that suits the largest time, or
                `auto_foreach` for one that suits each.
            file: where to; standard output by default.

        Raises:
            HookValueError: the unit is unknown.
        """
        print_times(self._title, self.summary(), unit, file)

    def listen(self, listener: Callable[[Timed], None]) -> None:
        """Give each call that is measured to a listener too, as it ends; inner ones first."""
        self._meter.listener = listener

    def _begin(self, call: Any, direction: str) -> None:
        self._meter.begin(call, subject_of(call, direction))


class ModuleTimerHook(Timer, ModuleBrackets):
    """Measures the forward and backward time of modules.

    Times exclude what hooks took, this one included. Calls that raise count too, up to where they
    raised. A forward that activation checkpointing repeats is kept apart (`recompute`), and so
    are passes in train, eval and no-grad mode. One hook may be used in several threads, and
    entered again later; it goes on adding up.

    Args:
        history: how many calls `call_history` keeps; the latest.
        clock: `host` for the time as the program sees it, `device` for CUDA events, read late
            and without synchronising; `auto` is `device` where CUDA is in use.

    Raises:
        HookValueError: the clock is unknown, or there is no CUDA device for it.

    Example:
        >>> import torch
        >>> from hookline.module_hooks import TimerHook
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
        >>> with TimerHook() as timer:
        ...     model(torch.randn(4, 8)).sum().backward()
        >>> timer.summary()["0"]["occurrence"]
        2
        >>> sorted(timer.summary())
        ['0', '1', 'Sequential']
    """

    name = "TimerHook"
    _title = "ModuleName"

    def print_report(self, unit: Unit | None = None, file: Writable | None = None) -> None:
        """Print what was measured: the table of `hookline show`, or times by name in one unit.

        Args:
            unit: as for functions, for the columns of Chainer's `TimerHook` in that unit; None
                for the table, a row for each module, mode and direction.
            file: where to; standard output by default.

        Raises:
            HookValueError: the unit is unknown.
        """
        if unit is not None:
            super().print_report(unit, file)
        else:
            Measuring.print_report(self, file)


class FunctionTimerHook(Timer, FunctionBrackets):
    """Measures the forward and backward time of functions.

    Functions do not nest, so their times add up: `total_time()` is that of all functions. What
    [hookline.module_hooks.TimerHook][] says of hooks, errors, checkpoints, modes, threads and
    clocks holds here too. The report and its keys are those of Chainer's `TimerHook`.

    Args:
        history: how many calls `call_history` keeps; the latest.
        clock: `host`, `device` or `auto`, as for modules.

    Raises:
        HookValueError: the clock is unknown, or there is no CUDA device for it.

    Example:
        >>> import torch
        >>> from hookline import TimerHook
        >>> with TimerHook() as timer:
        ...     _ = torch.exp(torch.ones(3) + 1)
        >>> [name for name, seconds in timer.call_history]
        ['ones', 'add', 'exp']
    """

    name = "TimerHook"
    _title = "FunctionName"


def _new_event(clock: str) -> Callable[[], Any] | None:
    """What makes the events of a clock; None for the host's."""
    if clock not in ("auto", "host", "device"):
        msg = f"{clock!r} is no clock; choose 'host', 'device' or 'auto'"
        raise HookValueError(msg)
    in_use = torch.cuda.is_available() and (clock == "device" or torch.cuda.is_initialized())
    if clock == "device" and not in_use:
        msg = "clock='device' needs a CUDA device, and there is none; use clock='host'"
        raise HookValueError(msg)
    return _cuda_event if in_use and clock != "host" else None


def _cuda_event() -> Any:
    return torch.cuda.Event(enable_timing=True)


def _names_of(rows: list[TimeRow]) -> list[str]:
    """A name for each row: a function's name; a module's path, or its root's name."""
    roots: dict[str, set[str]] = {}
    for row in rows:
        roots.setdefault(row.path or row.root, set()).add(row.root)

    def name_of(row: TimeRow) -> str:
        if row.level == "function":
            return row.name
        shared = row.path and len(roots[row.path]) > 1
        return f"{row.root}.{row.path}" if shared else row.path or row.root

    return [name_of(row) for row in rows]


def _added(entry: dict[str, Any] | None, row: TimeRow) -> dict[str, Any]:
    new = {
        "calls": row.calls,
        "total_time": row.total_time,
        "self_time": row.self_time,
        "minimum": row.minimum,
        "median": row.median,
        "maximum": row.maximum,
    }
    if entry is None:
        return new
    return {
        "calls": entry["calls"] + row.calls,
        "total_time": entry["total_time"] + row.total_time,
        "self_time": entry["self_time"] + row.self_time,
        "minimum": min(entry["minimum"], row.minimum),
        "median": row.median if row.calls > entry["calls"] else entry["median"],
        "maximum": max(entry["maximum"], row.maximum),
    }
