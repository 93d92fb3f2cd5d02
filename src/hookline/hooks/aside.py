"""Work of a hook's own outside of the engine's events: no hook sees it, and no timer counts it."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final
from weakref import WeakMethod, WeakSet

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from hookline.core.demand import demand
from hookline.core.thread import Thread
from hookline.torch_base.optimizers import is_part_of_a_step
from hookline.torch_base.stack import current_thread


@contextmanager
def at_rest(thread: Thread) -> Generator[None]:
    """What runs here fires no hooks and takes no time, as in a hook object's callback."""
    timed, busy = demand.clock, thread.busy
    if timed:
        thread.clock.freeze()
    thread.busy = True
    try:
        yield
    finally:
        thread.busy = busy
        if timed:
            thread.clock.thaw()


@contextmanager
def aside() -> Generator[None]:
    """Let the thread rest, and record no graph."""
    with at_rest(current_thread()), torch.no_grad():
        yield


class StepWatch:
    """Tells of the steps of all optimizers, while it is open; not of parts of a step.

    Args:
        before: called with the optimizer before it takes a step, and with the closure that runs
            in the step, or None; held weakly.
        after: called with the same after it took the step; held weakly.
    """

    def __init__(
        self, before: Callable[[Any, Any], None], after: Callable[[Any, Any], None] | None = None
    ) -> None:
        self._before = _weakly(before)
        self._after = None if after is None else _weakly(after)
        self._handles: list[Any] = []

    def open(self) -> None:
        """Tell of steps from now on."""
        if not self._handles:
            _open.add(self)
            self._handles.append(register_optimizer_step_pre_hook(self._before))
            if self._after is not None:
                self._handles.append(register_optimizer_step_post_hook(self._after))

    def close(self) -> None:
        """Tell of no more steps."""
        while self._handles:
            self._handles.pop().remove()

    def __del__(self) -> None:
        if hasattr(self, "_handles"):  # Ctrl-C may come before it was made
            self.close()


_open: Final[WeakSet[StepWatch]] = WeakSet()


def _forget_in_child() -> None:
    """In a forked child nothing is told of steps."""
    for watch in list(_open):
        watch.close()


os.register_at_fork(after_in_child=_forget_in_child)


_NO_CLOSURE: Final = (None, None)


def _weakly(method: Callable[[Any, Any], None]) -> Callable[..., None]:
    alive = WeakMethod(method)

    def call(optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        bound = alive()
        if bound is not None and not is_part_of_a_step(optimizer):
            _, closure, *_ = *args, *_NO_CLOSURE
            with aside():
                bound(optimizer, kwargs.get("closure", closure))

    return call
