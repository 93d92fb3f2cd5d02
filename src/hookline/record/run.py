"""Watching a whole program: hooks on every module or function in every thread, and their rows."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

from hookline.core.entry import Callback, Entry
from hookline.core.handle import HookHandle
from hookline.core.records import TimeRow
from hookline.core.registry import HookRegistry
from hookline.core.scope import HookObject, entry_of, register_object
from hookline.errors import HookValueError
from hookline.functions import places as function_places
from hookline.hooks.timer import FunctionTimerHook, ModuleTimerHook
from hookline.modules import places as module_places

LEVELS = ("module", "function", "both")


class Recorder:
    """Puts ready-made hooks on everything in all threads while it is open.

    A fault in one of them switches that hook off and is kept in `faults`; the program goes on.

    Args:
        time: measure time.
        level: of what: `module`, `function` or `both`.

    Attributes:
        faults: the faults of hookline's own, as text.

    Raises:
        HookValueError: the level is unknown.

    Example:
        >>> import torch
        >>> with Recorder(time=True) as recorder:
        ...     _ = torch.nn.Linear(2, 2)(torch.zeros(1, 2))
        >>> [(row.root, row.direction) for row in recorder.rows()]
        [('Linear', 'forward')]
    """

    def __init__(self, *, time: bool, level: str = "module") -> None:
        if level not in LEVELS:
            msg = f"{level!r} is no level; choose one of {', '.join(LEVELS)}"
            raise HookValueError(msg)
        self._timers: list[tuple[ModuleTimerHook | FunctionTimerHook, HookRegistry]] = []
        if time and level != "function":
            self._timers.append((ModuleTimerHook(), module_places.everywhere))
        if time and level != "module":
            self._timers.append((FunctionTimerHook(), function_places.everywhere))
        self._handles: list[HookHandle] = []
        self.faults: list[str] = []

    def __enter__(self) -> Self:
        try:
            for hook, registry in self._timers:
                self._register(hook, registry)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        while self._handles:
            self._handles.pop().remove()

    def rows(self) -> list[TimeRow]:
        """What was measured."""
        return [row for timer, _ in self._timers for row in timer.rows()]

    def _register(self, hook: HookObject, registry: HookRegistry) -> None:
        # The name is reserved, so that it never clashes with one of the program's own.
        plain = entry_of(hook, hook.level, f"hookline run: {hook.name}")

        def switch_off(entry: Entry) -> None:
            fault = traceback.format_exc().rstrip()
            self.faults.append(f"{hook.name} was switched off; the program went on\n{fault}")
            with suppress(Exception):  # a second fault, of its `deleted`
                registry.discard(entry)

        entry = _guarded(plain, switch_off)
        self._handles.append(register_object(registry, entry, None))


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
