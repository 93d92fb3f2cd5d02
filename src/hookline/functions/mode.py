"""Where functions are seen: one function mode a thread, and `apply` of custom functions.

The mode is on the thread's stack while the thread has function hooks, however many. Torch takes
it off while it handles a function, so what that calls is hidden; custom functions and
`FunctionNode`s hide what they call by the thread's `hidden` flag.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode

from hookline.core.entry import EMPTY
from hookline.core.thread import Thread, local
from hookline.functions.engine import run_function
from hookline.functions.naming import PASSED, Class, classify
from hookline.functions.places import everywhere, lineup_of
from hookline.torch_base import private
from hookline.torch_base.patch import Patch, Stand
from hookline.torch_base.repeats import in_checkpoint, repeated_around
from hookline.torch_base.stack import acting, current_thread


class _Classes(dict[Any, Class]):
    def __missing__(self, func: Any) -> Class:
        found = self[func] = classify(func)
        return found


_classes: Final = _Classes()
_is_compiling: Final = torch.compiler.is_dynamo_compiling


class FunctionMode(TorchFunctionMode):
    """Sees every function that its thread calls."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if _is_compiling():
            return func(*args, **(kwargs or {}))
        thread = local.thread
        kind, name = _classes[func]
        if kind is PASSED or thread.hidden or thread.busy:
            return func(*args, **kwargs) if kwargs else func(*args)
        if thread.worker is not False:
            acting(thread)
        lineup = thread.functions.lineup  # as in `lineup_of`, a frame less
        if everywhere.lineup is not EMPTY:
            lineup = everywhere.behind(lineup)
        if lineup is EMPTY or ((thread.runs or thread.worker) and inside_backward(thread)):
            return func(*args, **kwargs) if kwargs else func(*args)
        return run_function(func, name, args, kwargs or {}, lineup, thread)


def inside_backward(thread: Thread) -> bool:
    """Whether a function is part of a backward, so not one of its own.

    Only what a checkpoint repeats is: inside a module that is being called again, or directly in
    the part that the checkpoint is around.
    """
    if not thread.runs and not thread.worker:
        return False
    if repeated_around(thread) is not None:
        return False
    # Gradients are on for what a checkpoint repeats, and off for what it does besides.
    return not (torch.is_grad_enabled() and in_checkpoint(thread))


# Custom functions.


def _stand_in(stand: Stand) -> Any:
    def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
        plain = stand.bound_to(cls)
        thread = local.thread
        if not stand.active or thread.hidden or thread.busy or _is_torchs_own(cls):
            return plain(*args, **kwargs)
        thread = current_thread()
        lineup = lineup_of(thread)
        if lineup is EMPTY or inside_backward(thread):
            return plain(*args, **kwargs)
        return run_function(plain, cls.__name__, args, kwargs, lineup, thread)

    return classmethod(apply)


def _is_torchs_own(cls: type) -> bool:
    return cls.__module__.startswith("torch.") and cls.__name__ != "CompiledFunction"


custom_patch: Final = Patch(private.apply_owner, "apply", _stand_in)
"""Makes calls of custom functions known."""
