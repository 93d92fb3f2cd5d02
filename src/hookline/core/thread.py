"""What hookline knows of one thread: the calls that run in it and the hooks scoped to it."""

from __future__ import annotations

import threading
from collections import deque
from itertools import count
from typing import Any, Final

from hookline.core.clock import Clock
from hookline.core.registry import HookRegistry
from hookline.core.switch import Switch

module_switch: Final = Switch()
"""On while any hook needs module calls to be seen; the module engine connects it."""

_REMEMBERED_PASSES: Final = 64
_numbers: Final = count()


class Thread:
    """The state of one thread.

    Attributes:
        stack: what runs, outermost first: a call where it is watched, else the bare module.
        busy: a hook object's callback runs; torch calls inside it fire no hooks.
        clock: the thread's time without what hooks took.
        modules: the module hooks scoped to this thread.
        functions: the function hooks scoped to this thread.
        runs: the backward runs that this thread is inside of, outermost first.
        passes: the latest passes, to tell whose calls a checkpoint computes again.
        culprit: the entry whose callback raised, until the call it belongs to is ended.
        running: the pass that runs, if any.
        number: which thread it is; autograd numbers its nodes anew in each thread.
        backwards: how many backward runs the thread has begun.
        worker: whether this is one of autograd's worker threads, which act for their callers;
            None until that is known.
        forked: whether this is the thread of a forked child, in which its scopes are gone.
        noted: how deep the error that is on its way out got its note, and its identity.
    """

    __slots__ = (
        "__weakref__",
        "backwards",
        "busy",
        "clock",
        "culprit",
        "forked",
        "functions",
        "modules",
        "noted",
        "number",
        "passes",
        "running",
        "runs",
        "stack",
        "worker",
    )

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.busy = False
        self.clock = Clock()
        self.modules = HookRegistry(module_switch)
        self.functions = HookRegistry(Switch())
        self.runs: list[Any] = []
        self.passes: deque[Any] = deque(maxlen=_REMEMBERED_PASSES)
        self.culprit: Any = None
        self.noted: tuple[int, int] | None = None
        self.running: Any = None
        self.number = next(_numbers)
        self.backwards = 0
        self.worker: bool | None = None
        self.forked = False

    def forget(self) -> None:
        """Drop everything, in a forked child."""
        self.modules.clear()
        self.functions.clear()
        self.stack.clear()
        self.runs.clear()
        self.passes.clear()
        self.running = None
        self.busy = False
        self.forked = True

    def borrow(self, caller: Thread) -> None:
        """Act with the hooks and passes of the thread that called backward."""
        self.modules = caller.modules
        self.functions = caller.functions
        self.passes = caller.passes


class _Local(threading.local):
    # Runs anew in every thread that looks at it first.
    def __init__(self) -> None:
        self.thread = Thread()


local: Final = _Local()
"""`local.thread` is the state of the running thread."""
