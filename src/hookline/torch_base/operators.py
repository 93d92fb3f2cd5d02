"""Seeing the operators that run in a thread: what torch's functions and backwards are made of."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hookline.core.demand import demand
from hookline.core.thread import local
from hookline.torch_base.modes import dispatch_modes
from hookline.torch_base.private import (
    FakeTensor,
    HigherOrderOperator,
    dispatch_mode,
    dispatch_mode_keys,
    has_kernel_for,
    has_own_operations,
    is_composite,
    run_composite,
)

Ran = Callable[[Any, tuple[Any, ...], Mapping[str, Any], Any], None]
"""What is told of an operator that has run: it, its arguments and what it returned."""

_FAKE: Final = dispatch_mode_keys.FAKE
_TRACING: Final = tuple(dispatch_mode_keys.__members__.values())


class _Known(dict[Any, bool]):
    def __init__(self, find: Callable[[Any], bool]) -> None:
        super().__init__()
        self._find = find

    def __missing__(self, key: Any) -> bool:
        found = self[key] = self._find(key)
        return found


_composite: Final = _Known(
    lambda operator: not isinstance(operator, HigherOrderOperator) and is_composite(operator)
)
_has_own_kernel: Final = _Known(lambda key: has_kernel_for(*key))
_works_itself: Final = _Known(
    lambda cls: has_own_operations(cls) and not issubclass(cls, FakeTensor)
)


class _Within(threading.local):
    """What a mode knows of a thread.

    Attributes:
        depth: how many tensor classes of their own work in it.
        asked: whether one is about to begin.
        apart: whether a hook's callback runs, for which the mode was taken off.
    """

    def __init__(self) -> None:
        self.depth = 0
        self.asked = False
        self.apart = False


class OperatorMode(TorchDispatchMode):
    """Tells of each operator that runs while it is on its thread's stack.

    Operators that are made of others are taken apart, and a tensor class with operations of its
    own (a sharded or nested tensor) does what it does: told is what runs in the end. What hooks
    run in their callbacks is left out.

    Args:
        ran: is told.
    """

    supports_higher_order_operators = True

    def __init__(self, ran: Ran) -> None:
        super().__init__()
        self._ran = ran
        self.within = _Within()

    def put_on(self) -> None:
        """Stand on this thread's stack from now on."""
        dispatch_modes.put_on(self)

    def take_out(self) -> None:
        """Be on this thread's stack no more, wherever it lies there."""
        self.within.apart = False
        dispatch_modes.take_out(self)

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Leave compiled regions compiled, and see what they call."""
        return True

    def __torch_dispatch__(
        self,
        func: Any,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run an operator and tell of it."""
        kwargs = kwargs or {}
        if local.thread.busy:
            return func(*args, **kwargs)
        if types and any(map(_works_itself.__getitem__, types)) and not _is_traced():
            return self._left_to_its_class(func, args, kwargs)
        if _composite[func] and _is_taken_apart(func, (*args, *kwargs.values())):
            with dispatch_modes.standing((self,)):
                return run_composite(func, args, kwargs)
        out = func(*args, **kwargs)
        if not (self.within.depth and dispatch_mode(_FAKE) is not None):
            self._ran(func, args, kwargs, out)
        return out

    def _left_to_its_class(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Let a tensor class do an operator, and see what it does.

        What it only pretends to do meanwhile, to learn a shape, is left out.
        """
        within = self.within
        if within.asked:
            within.asked = False
            return NotImplemented  # so torch asks the class
        within.asked = True
        within.depth += 1
        try:
            with dispatch_modes.standing((self,)):
                return func(*args, **kwargs)
        finally:
            within.asked = False
            within.depth -= 1


def _apart(callback: Callable[..., object], *arguments: Any) -> object:
    """Call a hook's callback with modes of ours off this thread's stack.

    They would leave out what it runs, but each operator would come to them, which takes long.
    """
    stack = list(dispatch_modes)
    ours = [mode for mode in stack if isinstance(mode, OperatorMode)]
    if not ours:
        return callback(*arguments)
    try:
        for mode in ours:
            mode.within.apart = True
        dispatch_modes.put([mode for mode in stack if mode not in ours])
        return callback(*arguments)
    finally:
        # Scopes may have been opened or left meanwhile.
        now = list(dispatch_modes)
        kept = [mode for mode in stack if mode in now or (mode in ours and mode.within.apart)]
        dispatch_modes.put([*kept, *(mode for mode in now if mode not in kept)])
        for mode in ours:
            mode.within.apart = False


demand.apart = _apart


def _is_taken_apart(operator: Any, arguments: Iterable[Any]) -> bool:
    """Whether torch would run what a composite operator is made of, and no kernel for the inputs.

    Sparse and nested tensors have kernels besides, and so have some devices.
    """
    for argument in arguments:
        if isinstance(argument, list | tuple):
            if not _is_taken_apart(operator, argument):
                return False
        elif isinstance(argument, Tensor):
            plain = argument.layout is torch.strided and not argument.is_nested
            if not plain or _has_own_kernel[operator, argument.device.type]:
                return False
    return True


def _is_traced() -> bool:
    """Whether a program is being recorded: what records it must see the classes of its own."""
    return any(dispatch_mode(key) is not None for key in _TRACING)


def _forget_in_child() -> None:
    """In a forked child nothing of ours is on."""
    for mode in [mode for mode in dispatch_modes if isinstance(mode, OperatorMode)]:
        dispatch_modes.take_out(mode)


os.register_at_fork(after_in_child=_forget_in_child)
