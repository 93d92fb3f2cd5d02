"""What hookline knows of one thread: the calls that run in it and the hooks scoped to it."""

from __future__ import annotations

import os
import threading
import warnings
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any, Final

from hookline.core.clock import Clock
from hookline.core.registry import HookRegistry
from hookline.core.switch import Switch

module_switch: Final = Switch(loads="hookline.modules.install")
"""On while any hook needs module calls to be seen; `modules/install.py` connects it."""

_REMEMBERED_PASSES: Final = 64
_numbers: Final = count()


class Thread:
    """The state of one thread.

    Attributes:
        stack: what runs, outermost first: a call where it is watched, else the bare module.
        busy: the entry of the hook object whose callback runs, or True where others of ours do;
            torch calls inside fire no hooks.
        clock: the thread's time without what hooks took.
        modules: the module hooks scoped to this thread.
        functions: the function hooks scoped to this thread.
        runs: the backward runs that this thread is inside of, outermost first.
        passes: the latest passes, to tell whose calls a checkpoint computes again.
        culprit: the entry whose callback raised, until the call it belongs to is ended.
        running: the pass that runs, if any.
        grad: whether gradients were on when the outermost call began, if it is not watched.
        number: which thread it is; autograd numbers its nodes anew in each thread.
        process: the process that it runs in.
        backwards: how often a backward run began or ended in the thread; what is counted anew in
            one, for want of knowing better, is apart from what comes after.
        worker: whether this is one of autograd's worker threads, which act for their callers;
            None until that is known.
        hidden: whether a function runs, so that those which it calls are part of it.
        mode: the function mode of this thread, once it had one.
        tracker: the handle by which function hooks make module calls known.
        outside: the pass of functions that no module calls.
        forked: whether this is the thread of a forked child, in which its scopes are gone.
        works_for: the thread that called backward, for one of autograd's worker threads.
        notes: how many times errors on their way out passed a call or hook that notes them.
        noted: the identity of the last such error.
    """

    __slots__ = (
        "__weakref__",
        "backwards",
        "busy",
        "clock",
        "culprit",
        "forked",
        "functions",
        "grad",
        "hidden",
        "mode",
        "modules",
        "noted",
        "notes",
        "number",
        "onlooker",
        "outside",
        "passes",
        "process",
        "running",
        "runs",
        "stack",
        "tracker",
        "worker",
        "works_for",
    )

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.busy: Any = False
        self.clock = Clock()
        self.modules = HookRegistry(module_switch)
        self.functions = HookRegistry(Switch())
        self.runs: list[Any] = []
        self.passes: deque[Any] = deque(maxlen=_REMEMBERED_PASSES)
        self.culprit: Any = None
        self.works_for: Thread | None = None
        self.notes = 0
        self.noted: int | None = None
        self.running: Any = None
        self.grad = True
        self.number = next(_numbers)
        self.process = os.getpid()
        self.backwards = 0
        self.worker: bool | None = None
        self.forked = False
        self.hidden = False
        self.onlooker = False  # works beside the program, which may write what it reads
        self.mode: Any = None
        self.outside: Any = None
        self.tracker: Any = None

    def forget(self) -> None:
        """Drop the hooks and passes, in a forked child; what runs there goes on and ends."""
        self.modules.forget()
        self.functions.forget()
        self.passes.clear()
        self.running = None
        self.busy = False
        self.forked = True

    # The defaults are there still when the interpreter shuts down and modules are emptied.
    def __del__(
        self, warn: Callable[..., None] = warnings.warn, getpid: Callable[[], int] = os.getpid
    ) -> None:
        # A fork drops the other threads in the child, where they are no concern of anybody.
        if self.works_for is None and self.process == getpid():
            entries = (*self.modules.lineup.entries, *self.functions.lineup.entries)
            left = [entry.name for entry in entries if entry.hook is not None]  # not the tracker
            if left:
                msg = f"a thread ended inside of `with` for {', '.join(left)}; they are removed"
                warn(msg, ResourceWarning)

    def borrow(self, caller: Thread) -> None:
        """Act with the hooks, passes and clock of the thread that called backward."""
        if caller is self:
            return  # it called a backward of its own inside of the other's
        self.works_for = caller
        self.clock = caller.clock
        self.modules = caller.modules
        self.functions = caller.functions
        self.mode = caller.mode
        self.passes = caller.passes


class _Local(threading.local):
    # Runs anew in every thread that looks at it first.
    def __init__(self) -> None:
        self.thread = Thread()


local: Final = _Local()
"""`local.thread` is the state of the running thread."""
