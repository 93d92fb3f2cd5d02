"""Watching a whole program: hooks on every module or function in every thread, and their rows."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import count
from time import perf_counter_ns
from typing import Any, Final, Self

from torch import nn

from hookline.core.entry import Callback, Entry
from hookline.core.handle import HookHandle
from hookline.core.names import full_name
from hookline.core.scope import HookObject, entry_of, register_object
from hookline.functions import places as function_places
from hookline.functions.hook import FunctionHook
from hookline.hooks.aside import aside
from hookline.hooks.measuring import Measuring
from hookline.hooks.stats import Statistics
from hookline.hooks.timer import Timer
from hookline.hooks.watcher import Watcher
from hookline.modules import places as module_places
from hookline.record.census import Census
from hookline.record.course import Course
from hookline.record.live import Glance
from hookline.record.measures import Measures
from hookline.record.rows import EventRow, FaultRow, SeriesRow
from hookline.record.wanted import Wanted

Tables = dict[type[Any], list[Any]]
"""Rows by their class."""


class Recorder:
    """Puts ready-made hooks on everything in all threads while it is open.

    A fault in one of them switches that hook off and is kept in `faults`; the program goes on.

    Args:
        measures: what to measure.
        where: patterns, as `select` takes them, of what is measured; everything by default.
        models: measure only what belongs to these; all models by default.

    Attributes:
        faults: the faults of hookline's own, as text.

    Example:
        >>> import torch
        >>> from hookline.core.records import TimeRow
        >>> with Recorder(Measures(time=True)) as recorder:
        ...     _ = torch.nn.Linear(2, 2)(torch.zeros(1, 2))
        >>> [(row.root, row.direction) for row in recorder.tables()[TimeRow]]
        [('Linear', 'forward')]
    """

    def __init__(
        self,
        measures: Measures,
        where: Sequence[object] = (),
        models: Iterable[nn.Module] = (),
    ) -> None:
        self.faults: Final[list[str]] = []
        self._number: Final = next(_numbers)
        self.measures: Final = measures
        self._hooks: Final = list(measures.hooks())
        self._wanted: Final = Wanted(where, models, functions=measures.level != "module")
        self._handles: list[HookHandle] = []
        self._opened: list[HookObject] = []
        names = [hook.name for hook in self._hooks]
        self._census = Census(names, self._wanted, self._note_census)
        self._course = Course(perf_counter_ns())

    def __enter__(self) -> Self:
        self._census.begin()
        try:
            for hook in self._hooks:
                if isinstance(hook, Timer):
                    hook.listen(self._course.timed)
                elif isinstance(hook, Statistics):
                    hook.listen(self._course.looked)
                self._register(hook)
                if self._wanted.everything:
                    self._opened.append(hook)
                    hook.opened()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._census.end()
        while self._opened:
            self._opened.pop().closed()
        while self._handles:
            self._handles.pop().remove()

    def tables(self, *, over: bool = True) -> Tables:
        """What was measured so far.

        Args:
            over: whether the program is over, so that it can be told what never came.
        """
        with aside():  # hooks read tensors for it, and a scope of the program's may be open
            rows = [row for hook in self._hooks for row in self._rows_of(hook)]
            rows += self._rows_of_census(over=over)
        # Hooks that are asked for their rows have told the course all that they measured.
        found: Tables = {SeriesRow: self._course.series(), EventRow: self._course.events()}
        for row in rows:
            found.setdefault(type(row), []).append(row)
        faults = [f"a fault of its own: {text}" for text in self.faults]
        faults += self._wanted.unmatched() if over else ()
        found[FaultRow] = [FaultRow(text) for text in faults]
        return found

    def _rows_of_census(self, *, over: bool) -> Iterable[Any]:
        try:
            return self._census.rows(over=over)
        except Exception:  # noqa: BLE001 - whatever our fault is
            self._note_census()
            return ()

    def glance(self) -> Glance:
        """How the run stands; waits for nothing."""
        slowest = [hook.slowest() for hook in self._hooks if isinstance(hook, Timer)]
        found = [hook.times for hook in self._hooks if isinstance(hook, Watcher)]
        # Of both levels, the modules come first.
        most = next(filter(None, slowest), None)
        named = None if most is None else (full_name(most[0]), most[1])
        return Glance(self._census.passes(), named, sum(found) if found else None)

    def _rows_of(self, hook: Any) -> Iterable[Any]:
        """All that a hook tells; a fault in that is one of ours."""
        try:
            return hook.all_rows() if isinstance(hook, Measuring) else ()
        except Exception:  # noqa: BLE001 - whatever our fault is
            self._note_fault(hook, "could not tell what it measured")
            return ()

    def _note_census(self) -> None:
        self._note("a model could not be looked at")

    def _note_fault(self, hook: Any, what: str) -> None:
        self._note(f"{hook.name} {what}")

    def _note(self, what: str) -> None:
        text = f"{what}; the program went on\n{traceback.format_exc().rstrip()}"
        if text not in self.faults:
            self.faults.append(text)

    def _register(self, hook: HookObject) -> None:
        is_function = isinstance(hook, FunctionHook)
        registry = function_places.everywhere if is_function else module_places.everywhere
        wanted = self._wanted.function if is_function else self._wanted.module
        # The name is reserved, so that it never clashes with one of the program's own, nor with
        # one of a recording around this one.
        plain = entry_of(hook, hook.level, f"hookline run {self._number}: {hook.name}")

        def switch_off(entry: Entry) -> None:
            self._note_fault(hook, "was switched off")
            with suppress(Exception):  # a second fault, of its `deleted`
                registry.discard(entry)

        entry = _guarded(plain, switch_off, None if self._wanted.everything else wanted)
        self._handles.append(register_object(registry, entry, None))


_numbers: Final = count(1)


def _guarded(
    entry: Entry, on_fault: Callable[[Entry], None], wanted: Callable[[Any], bool] | None
) -> Entry:
    """The entry with callbacks for wanted calls only, whose faults do not reach the program."""

    def guard(callback: Callback) -> Callback:
        def guarded(call: Any, *rest: Any) -> None:
            try:
                if wanted is None or wanted(call):
                    callback(call, *rest)
            except Exception:  # noqa: BLE001 - whatever our fault is
                on_fault(new)

        return guarded

    new = Entry(**entry.guarded(guard))
    return new
