"""Time of every module: forward and backward, with and without the calls inside."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from hookline.core.calls import Call
from hookline.core.records import TimeRow
from hookline.hooks.series import Series
from hookline.hooks.time_report import print_times
from hookline.modules.hook import ModuleHook

if TYPE_CHECKING:
    from hookline.modules.call import ModuleCall


class Measured(NamedTuple):
    """What a series of durations is of; the fields are those of `TimeRow`."""

    root: str
    path: str | None
    type: str
    level: str
    mode: str
    direction: str
    name: str = ""


class _Frame:
    __slots__ = ("call", "inside", "what")

    def __init__(self, call: Call, what: Measured) -> None:
        self.call = call
        self.what = what
        self.inside = 0


class TimeMeter:
    """Measures calls that nest, in any number of threads.

    Each thread has a stack of the calls that run; a call's own time is its time less that of the
    calls inside it, whatever their direction: a forward that a checkpoint repeats inside a
    backward is not the backward's own.

    Args:
        history: how many of the latest calls `history` keeps.
    """

    def __init__(self, history: int) -> None:
        self.history: deque[tuple[str, float]] = deque(maxlen=history)
        self.series: dict[Measured, Series] = {}
        self.outermost = 0
        self._lock = threading.Lock()
        self._local = threading.local()

    def _stack(self) -> list[tuple[_Frame, int]]:
        try:
            return self._local.stack
        except AttributeError:
            stack = self._local.stack = []
            return stack

    def begin(self, call: Any, what: Measured) -> None:
        """A call begins, at `call.now`."""
        self._stack().append((_Frame(call, what), call.now))

    def end(self, call: Any, label: str) -> None:
        """A call ends, at `call.now`, well or not."""
        stack = self._stack()
        if not stack or stack[-1][0].call is not call:
            return  # it began in another thread, on another clock
        frame, start = stack.pop()
        duration = call.now - start
        if stack:
            stack[-1][0].inside += duration
        with self._lock:
            series = self.series.get(frame.what)
            if series is None:
                series = self.series[frame.what] = Series()
            series.add(duration, frame.inside)
            self.history.append((label, duration / 1e9))
            if not stack:
                self.outermost += duration

    def rows(self) -> list[TimeRow]:
        """What was measured so far."""
        with self._lock:
            return [_row(what, series) for what, series in self.series.items()]

    def reset(self) -> None:
        """Forget what was measured; calls that run are not disturbed."""
        with self._lock:
            self.series.clear()
            self.history.clear()
            self.outermost = 0


def _row(what: Measured, series: Series) -> TimeRow:
    return TimeRow(
        **what._asdict(),
        calls=series.count,
        self_time=series.self_total / 1e9,
        total_time=series.total / 1e9,
        minimum=series.minimum / 1e9,
        median=series.median / 1e9,
        maximum=series.maximum / 1e9,
    )


def names_of(rows: list[TimeRow]) -> list[str]:
    """A name for each row: its path, or the root's name; with the root where two share a path."""
    roots: dict[str, set[str]] = {}
    for row in rows:
        roots.setdefault(row.path or row.root, set()).add(row.root)
    return [
        f"{row.root}.{row.path}" if row.path and len(roots[row.path]) > 1 else row.path or row.root
        for row in rows
    ]


class TimerHook(ModuleHook):
    """Measures the forward and backward time of modules.

    Times exclude what hooks took, this one included. Calls that raise count too, up to where they
    raised. A forward that activation checkpointing repeats is kept apart (`recompute`), and so
    are passes in train, eval and no-grad mode. One hook may be used in several threads, and
    entered again later; it goes on adding up. Work that a device does asynchronously is measured
    as the host sees it.

    Args:
        history: how many calls `call_history` keeps; the latest.

    Attributes:
        call_history: `(name, seconds)` of the latest calls, in the order in which they ended:
            those inside before those around them.

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

    timed = True

    def __init__(self, history: int = 10_000) -> None:
        self._meter = TimeMeter(history)

    @property
    def call_history(self) -> list[tuple[str, float]]:
        """`(name, seconds)` of the latest calls, inner ones before those around them."""
        return list(self._meter.history)

    def forward_preprocess(self, call: ModuleCall) -> None:
        """Start the forward's time."""
        self._meter.begin(call, _measured(call, "recompute" if call.recomputing else "forward"))

    def forward_postprocess(self, call: ModuleCall) -> None:
        """Stop the forward's time."""
        self._meter.end(call, call.label)

    def backward_preprocess(self, call: ModuleCall) -> None:
        """Start the backward's time."""
        self._meter.begin(call, _measured(call, "backward"))

    def backward_postprocess(self, call: ModuleCall) -> None:
        """Stop the backward's time."""
        self._meter.end(call, call.label)

    def aborted(self, call: ModuleCall, exception: BaseException) -> None:
        """Stop the time of a call that raised."""
        self._meter.end(call, call.label)

    def total_time(self) -> float:
        """The time in seconds of the outermost calls; those inside are part of them."""
        return self._meter.outermost / 1e9

    def rows(self) -> list[TimeRow]:
        """What was measured, a row for each module, mode and direction."""
        return self._meter.rows()

    def summary(self) -> dict[str, dict[str, Any]]:
        """What was measured, by the name of the module.

        Returns:
            For each module `elapsed_time` (seconds, calls inside it included) and `occurrence`
            (forwards and backwards) as in Chainer; `self_time`, without the calls inside it; and
            for each direction that occurred a dict with `calls`, `total_time`, `self_time`,
            `minimum`, `median` and `maximum`. Modes are added up; medians are those of the mode
            with most calls. The root goes by its name; where two roots share a path, the name
            has the root's in front.
        """
        rows = self.rows()
        found: dict[str, dict[str, Any]] = {}
        for name, row in zip(names_of(rows), rows, strict=True):
            entry = found.setdefault(name, {"elapsed_time": 0.0, "occurrence": 0, "self_time": 0.0})
            entry["elapsed_time"] += row.total_time
            entry["occurrence"] += row.calls
            entry["self_time"] += row.self_time
            entry[row.direction] = _added(entry.get(row.direction), row)
        return found

    def print_report(self, unit: str = "auto", file: TextIO | None = None) -> None:
        """Print a table of what was measured.

        Args:
            unit: `sec`, `ms`, `us` or `ns`; `auto` for one that suits the largest time, or
                `auto_foreach` for one that suits each.
            file: where to; standard output by default.

        Raises:
            HookValueError: the unit is unknown.
        """
        print_times("ModuleName", self.summary(), unit, file)

    def reset(self) -> None:
        """Forget what was measured."""
        self._meter.reset()


def _measured(call: ModuleCall, direction: str) -> Measured:
    running = call.running
    return Measured(running.root.name, call.path, call.type, "module", running.mode, direction)


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
