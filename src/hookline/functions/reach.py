"""Turning the function level on and off: in one thread, or in all.

A mode is the affair of its own thread. While there are hooks for all threads, each thread that
starts is reached by the profile function that `threading` sets in it before it runs.
"""

from __future__ import annotations

import os
import sys
import threading
from functools import partial
from typing import Any, Final
from weakref import WeakSet, ref

from hookline.core.entry import EMPTY, Entry
from hookline.core.registry import HookRegistry
from hookline.core.switch import Switch
from hookline.core.thread import Thread, local
from hookline.functions.mode import FunctionMode, custom_patch
from hookline.functions.places import everywhere
from hookline.torch_base.modes import function_modes

_custom_switch: Final = Switch()
_custom_switch.connect(custom_patch.install, custom_patch.uninstall)


def scoped(thread: Thread) -> HookRegistry:
    """The registry of a thread's function hooks, connected to the thread's function mode."""
    if not thread.functions.switch:
        # Weak, since a thread that ends with an open scope is cleaned up by being dropped.
        thread_ref = ref(thread, _custom_switch.release)
        thread.functions.switch.connect(partial(_on, thread_ref), partial(_off, thread_ref))
    return thread.functions


def _on(thread_ref: ref[Thread]) -> None:
    """A thread has function hooks: see its functions, and the modules that call them."""
    thread = thread_ref()
    assert thread is not None
    if thread.mode is None:
        thread.mode = FunctionMode()
    function_modes.put_on(thread.mode)
    _custom_switch.hold(thread_ref)
    # An entry without callbacks: module calls become known, and no hook is called for them.
    thread.tracker = thread.modules.add(Entry(None, {}, name="function hooks"))


def _off(thread_ref: ref[Thread]) -> None:
    """The thread has no function hooks any more, or is gone."""
    _custom_switch.release(thread_ref)
    thread = thread_ref()
    if thread is None:
        return
    if thread is local.thread:
        # In a callback it lies nowhere: torch puts it back after the function, to pass all on.
        function_modes.take_out(thread.mode)
    if thread.tracker is not None:
        thread.tracker.remove()
        thread.tracker = None


class _AllThreads:
    """Holds the function level on in this thread, and in each that starts meanwhile."""

    def __init__(self) -> None:
        self._reached: WeakSet[Thread] = WeakSet()
        self._programs: Any = None

    def on(self) -> None:
        self._programs = threading.getprofile()
        threading.setprofile(self._profile)
        self._reach()

    def off(self) -> None:
        if threading.getprofile() == self._profile:
            threading.setprofile(self._programs)
        for thread in list(self._reached):
            thread.functions.switch.release(self)
        self._reached.clear()

    def _reach(self) -> None:
        thread = local.thread
        self._reached.add(thread)
        scoped(thread).switch.hold(self)

    def _profile(self, *event: Any) -> None:
        """Run once, in a new thread, before it does anything; then the program's own is set."""
        sys.setprofile(self._programs)
        if everywhere.lineup is not EMPTY:
            self._reach()
        if self._programs is not None:
            self._programs(*event)


_all_threads: Final = _AllThreads()
everywhere.switch.connect(_all_threads.on, _all_threads.off)


def _forget_in_child() -> None:
    """In a forked child nothing of ours is on; its one thread is cleared by the module engine."""
    everywhere.forget()
    _custom_switch.reset()


os.register_at_fork(after_in_child=_forget_in_child)
