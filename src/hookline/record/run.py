"""Watching a whole program: hooks on every module in every thread, and their rows."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, Self

from hookline.core.entry import Callback, Entry
from hookline.core.handle import HookHandle
from hookline.core.records import TimeRow
from hookline.core.scope import entry_of, register_object, remove_object
from hookline.hooks.timer import TimerHook
from hookline.modules.hook import ModuleHook
from hookline.modules.places import everywhere


class Recorder:
    """Puts ready-made hooks on all modules in all threads while it is open.

    A fault in one of them switches that hook off and is kept in `faults`; the program goes on.

    Args:
        time: measure the time of modules.

    Attributes:
        faults: the faults of hookline's own, as text.

    Example:
        >>> import torch
        >>> with Recorder(time=True) as recorder:
        ...     _ = torch.nn.Linear(2, 2)(torch.zeros(1, 2))
        >>> [(row.root, row.direction) for row in recorder.rows()]
        [('Linear', 'forward')]
    """

    def __init__(self, *, time: bool) -> None:
        self._timer = TimerHook() if time else None
        self._handles: list[HookHandle] = []
        self.faults: list[str] = []

    def __enter__(self) -> Self:
        if self._timer is not None:
            self._register(self._timer)
        return self

    def __exit__(self, *_: object) -> None:
        while self._handles:
            remove_object(self._handles.pop(), None)

    def rows(self) -> list[TimeRow]:
        """What was measured."""
        return [] if self._timer is None else self._timer.rows()

    def _register(self, hook: ModuleHook) -> None:
        # The name is reserved, so that it never clashes with one of the program's own.
        entry = _guarded(entry_of(hook, ModuleHook, f"hookline run: {hook.name}"), self._switch_off)
        self._handles.append(register_object(everywhere, entry, None))

    def _switch_off(self, entry: Entry) -> None:
        fault = traceback.format_exc().rstrip()
        self.faults.append(f"{entry.name} was switched off after a fault:\n{fault}")
        everywhere.discard(entry)


def _guarded(entry: Entry, on_fault: Callable[[Entry], None]) -> Entry:
    """The entry with callbacks whose faults do not reach the program."""

    def guard(callback: Callback) -> Callback:
        def guarded(*arguments: Any) -> None:
            try:
                callback(*arguments)
            except Exception:  # noqa: BLE001 - whatever our fault is
                on_fault(new)

        return guarded

    new = Entry(
        entry.hook,
        {phase: guard(callback) for phase, callback in entry.callbacks.items()},
        name=entry.name,
        key=entry.key,
        paired=True,
        aborted=None if entry.aborted is None else guard(entry.aborted),
        timed=entry.timed,
    )
    return new
