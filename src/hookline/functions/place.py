"""Whose call is it, for functions: the module that calls it, and its number there."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import nn

from hookline.core.calls import Call, Pass
from hookline.core.thread import Thread
from hookline.functions.call import FunctionCall
from hookline.torch_base.paths import executing_path
from hookline.torch_base.replicas import key_of
from hookline.torch_base.stack import pass_of, steps


class _Outside:
    """The root of functions that no module calls."""

    def __init__(self) -> None:
        self.name = ""
        self.seats: dict[Any, tuple[str, ...]] = {}


_OUTSIDE: Final = _Outside()


def place_function(call: FunctionCall, thread: Thread) -> None:
    """Settle which call this is: module path, pass and index.

    Functions are counted by module path and name in a pass. Inside a module call that a
    checkpoint repeats, counting starts where it started when the call ran first.

    Args:
        call: the new call, filled in here.
        thread: the thread's state.
    """
    call.thread = thread.number
    above: Any = thread.stack[-1] if thread.stack else None
    if isinstance(above, Call):
        call.parent = above
        call.module_path = getattr(above, "path", None)
        call.running = above.running
        call.recomputing = above.recomputing
        call.index = _index_in(above, call.name)
        return
    if above is None:
        call.running = outside(thread)
        # Only a checkpoint calls functions outside of any module inside a backward run.
        call.recomputing = bool(thread.runs or thread.worker)
    else:
        call.module_path, call.running = _bare_module(above, thread)
    totals = call.running.totals
    key = (call.module_path, call.name)
    call.index = totals.get(key, 0)
    totals[key] = call.index + 1


def _index_in(above: Any, name: str) -> int:
    """The index of the next call of a function in a module call."""
    if above.functions is None:
        above.functions = {}
    count = above.functions.get(name, 0)
    above.functions[name] = count + 1
    running, key = above.running, (above.path, name)
    index = running.totals.get(key, 0)
    if above.recomputing:
        return running.firsts.get((*key, above.index), index) + count
    if not count:
        running.firsts[(*key, above.index)] = index
    running.totals[key] = index + 1
    return index


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
