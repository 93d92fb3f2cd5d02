"""Whose call is it, for functions: the module that calls it, and its number there."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import nn

from hookline.core.calls import Call, Pass
from hookline.core.thread import Thread
from hookline.functions.call import FunctionCall
from hookline.torch_base.paths import executing_path, roots
from hookline.torch_base.private import sequence_number
from hookline.torch_base.replicas import key_of
from hookline.torch_base.stack import pass_of, settle_repeat, steps


class _Outside:
    """The root of functions that no module calls."""

    def __init__(self) -> None:
        self.name = ""
        self.seats: dict[Any, tuple[str, ...]] = {}


_OUTSIDE: Final = _Outside()


def place_function(call: FunctionCall, thread: Thread) -> None:
    """Settle which call this is: module path, pass and index.

    Functions are counted by module path and name in a pass. What a checkpoint repeats takes the
    number of what it repeats.

    Args:
        call: the new call, filled in here.
        thread: the thread's state.
    """
    call.thread = thread.number
    above: Any = thread.stack[-1] if thread.stack else None
    if above is None:
        _place_outside(call, thread)
        return
    call.start = sequence_number()
    if isinstance(above, Call):
        call.parent, call.running = above, above.running
    if (thread.runs or thread.worker) and _repeats(call, above, thread):
        return
    if not isinstance(above, Call):
        call.own_path, call.running = _bare_module(above, thread)
    functions, key = call.running.functions, (call.module_path, call.name)
    starts = functions.get(key)
    if starts is None:
        functions[key] = [call.start]
    else:
        call.index = len(starts)
        starts.append(call.start)


def _place_outside(call: FunctionCall, thread: Thread) -> None:
    call.running = outside(thread)
    # Only a checkpoint calls functions outside of any module inside a backward run.
    call.recomputing = bool(thread.runs or thread.worker)
    totals = call.running.totals
    call.index = totals.get(call.name, 0)
    totals[call.name] = call.index + 1


def _repeats(call: FunctionCall, above: Any, thread: Thread) -> bool:
    """Whether a function that a module calls inside a backward repeats one that is known."""
    if call.parent is not None:
        root = call.running.root
    else:
        root = roots.root_of(above)
        call.own_path = executing_path(root, above, thread.stack)
    key = (call.module_path, call.name)
    passes = (p for p in thread.passes if p.root is root and key in p.functions)
    return settle_repeat(call, key, [(p, p.functions[key]) for p in passes], thread)


def outside(thread: Thread) -> Pass:
    """The pass of functions that no module calls: up to the next backward or optimizer step."""
    current: Pass | None = thread.outside
    mode = "train" if torch.is_grad_enabled() else "no_grad"
    if current is None or current.backwards != thread.backwards or current.step != steps.count:
        number = 0 if current is None else current.number + 1
        thread.outside = Pass(_OUTSIDE, number, steps.count, mode, None, thread.backwards)
    elif current.mode != mode:
        # The same pass in another mode, so that what ran with and without gradients is kept apart.
        other = Pass(_OUTSIDE, current.number, current.step, mode, None, current.backwards)
        other.totals = current.totals
        thread.outside = other
    return thread.outside


def _bare_module(module: nn.Module, thread: Thread) -> tuple[str, Pass]:
    """The path and pass of a module that nobody watches."""
    key = key_of(module)
    running = pass_of(module, key, thread)
    if key not in running.root.seats:
        return f"<{type(module).__name__}>", running
    return executing_path(running.root, module, thread.stack), running
