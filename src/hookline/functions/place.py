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
        call.running = above.running
        call.recomputing = above.recomputing
        counts = above.functions  # pyright: ignore[reportAttributeAccessIssue]
        if counts is None:
            counts = _counts_in(above)
    elif above is None:
        counts = outside(thread).totals.setdefault(None, {})
        call.running = thread.outside
        # Only a checkpoint calls functions outside of any module inside a backward run.
        call.recomputing = bool(thread.runs or thread.worker)
    else:
        call.own_path, call.running = _bare_module(above, thread)
        counts = call.running.totals.setdefault(call.own_path, {})
    name = call.name
    index = call.index = counts.get(name, 0)
    counts[name] = index + 1


def _counts_in(above: Any) -> dict[str, int]:
    """The counts from which a module call's functions get their indices."""
    running, path = above.running, above.path
    counts = running.totals.setdefault(path, {})
    begin = (path, above.index)
    if above.recomputing:
        counts = dict(running.begins.get(begin, counts))
    else:
        running.begins[begin] = dict(counts)
    above.functions = counts
    return counts


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
