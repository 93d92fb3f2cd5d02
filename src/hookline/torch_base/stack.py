"""Whose call is it: the passes of a thread, and a call's place in them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn

from hookline.core.calls import Call, Key, Mode, Pass
from hookline.core.thread import Thread, local
from hookline.torch_base import private
from hookline.torch_base.modes import function_modes
from hookline.torch_base.optimizers import is_part_of_a_step
from hookline.torch_base.paths import Root, executing_path, roots
from hookline.torch_base.repeats import Known
from hookline.torch_base.replicas import key_of, originals

_TLS_NAME: Final = "hookline"


class Steps:
    """Counts optimizer steps while the engine is on (torch's global optimizer hook)."""

    def __init__(self) -> None:
        self.count = 0

    def taken(self, optimizer: object, *_: object) -> None:
        """One more step was taken, by any optimizer; a part of one is none."""
        if not is_part_of_a_step(optimizer):
            self.count += 1


steps: Final = Steps()

listeners: Final[list[Callable[[Pass], None]]] = []
"""Each is told of every pass that begins, in any thread; none may raise."""

os.register_at_fork(after_in_child=listeners.clear)


def acting(thread: Thread) -> Thread:
    """The thread's state, settled: in a worker of autograd, with its caller's hooks.

    To be called while `thread.worker` is not False.
    """
    if thread.worker is None:
        thread.worker = private.is_stashed(_TLS_NAME)
    if thread.worker and private.is_stashed(_TLS_NAME):
        thread.borrow(private.stashed(_TLS_NAME).thread)
    return thread


def current_thread() -> Thread:
    """The state of the thread that runs."""
    thread = local.thread
    return thread if thread.worker is False else acting(thread)


def acting_run(thread: Thread) -> Any:
    """The backward run that this thread is working on, or None."""
    return thread.runs[-1] if thread.runs else lent()


def lent() -> Any:
    """The run that worker threads of autograd find now, or None."""
    return private.stashed(_TLS_NAME) if private.is_stashed(_TLS_NAME) else None


def lend_to_workers(run: Any) -> None:
    """Let autograd's worker threads find a run, and its thread's hooks."""
    private.stash(_TLS_NAME, run)


def end_lending(outer: Any) -> None:
    """Let them find the run around it again, or none."""
    if outer is not None:
        private.stash(_TLS_NAME, outer)
    elif private.is_stashed(_TLS_NAME):
        private.unstash(_TLS_NAME)


def place(call: Any, module: nn.Module, key: Key[nn.Module], thread: Thread) -> None:
    """Settle which call this is: module, path, pass, index and number.

    Args:
        call: the new call, filled in here.
        module: the module that is called.
        key: a weak reference to it.
        thread: the thread's state, with the call not yet on its stack.
    """
    if originals:
        key = originals.get(key, key)
    call.key = key
    call.cls = type(module)
    start = call.start = private.sequence_number()
    call.thread = thread.number
    stack = thread.stack
    if (thread.runs or thread.worker) and _repeats(call, key, thread):
        paths = call.running.root.seats.get(key, ("",))
    else:
        running = thread.running if stack else None
        if running is None:
            running = pass_of(module, key, thread)
        paths = running.root.seats.get(key)
        if paths is None:
            running, paths = _elsewhere(running, module, key, thread)
        call.running = running
        starts = running.starts.get(key)
        if starts is None:
            running.starts[key] = [start]
        else:
            call.index = len(starts)
            starts.append(start)
    call.paths = paths
    if len(paths) > 1:
        call.shared_path = executing_path(call.running.root, module, stack)


def _repeats(call: Call, key: Key[nn.Module], thread: Thread) -> bool:
    # Autograd gives each node the modes that were on when the run began; a scope may be newer.
    if thread.functions.switch and not thread.hidden and private.current_node() is not None:
        function_modes.put_on(thread.mode)
    known = [(p, p.starts[key]) for p in thread.passes if key in p.starts]
    return settle_repeat(call, key, known, thread)


def settle_repeat(call: Call, key: object, known: Known, thread: Thread) -> bool:
    """Whether a call repeats one that is known; see `Repeats.settle`."""
    run = acting_run(thread)
    return run is not None and run.repeats.settle(call, key, known, thread, run.begun)


def pass_of(module: nn.Module, key: Key[nn.Module], thread: Thread) -> Pass:
    """The pass that runs in a thread; a module that is called outermost opens one."""
    if not thread.stack:
        return _open_pass(module, key, thread)
    running = thread.running
    if running is None:
        depth = thread.runs[-1].depth if thread.runs else 0
        outermost = thread.stack[depth] if depth < len(thread.stack) else module
        running = thread.running = _open_pass_of(outermost, module, key, thread)
    return running


def _open_pass_of(
    outermost: object, module: nn.Module, key: Key[nn.Module], thread: Thread
) -> Pass:
    """The pass that began with an outermost call which nobody watched."""
    if isinstance(outermost, nn.Module):
        return _open_pass(outermost, key_of(outermost), thread, grad=thread.grad)
    return _open_pass(module, key, thread)


def _elsewhere(
    running: Pass, module: nn.Module, key: Key[nn.Module], thread: Thread
) -> tuple[Pass, tuple[str, ...]]:
    """The pass of a module that the walk did not find in the root that runs."""
    root = running.root
    assert isinstance(root, Root)
    if key not in running.starts:
        paths = roots.refreshed(root).seats.get(key)
        if paths is not None:
            return running, paths
    other = next((p for p in reversed(thread.passes) if key in p.root.seats), None)
    if other is None or not _continues(other, key, thread):
        other = _open_pass(module, key, thread)
    return other, other.root.seats[key]


def _open_pass(
    module: nn.Module, key: Key[nn.Module], thread: Thread, *, grad: bool | None = None
) -> Pass:
    root = roots.root_of(module)
    top = root.module
    grad = torch.is_grad_enabled() if grad is None else grad
    mode = _mode(top if top is not None else module, grad=grad)
    if "" not in root.seats.get(key, ()):
        # The root itself is not being called (a training step calls its children): what its
        # children do between two updates is one pass.
        for earlier in reversed(thread.passes):
            if earlier.root is root:
                if earlier.mode == mode and _continues(earlier, key, thread):
                    return earlier
                break
    opened = Pass(root, next(root.numbers), steps.count, mode, key, thread.backwards)
    thread.passes.append(opened)
    for tell in listeners:
        tell(opened)
    return opened


def _continues(earlier: Pass, key: Key[nn.Module], thread: Thread) -> bool:
    if earlier.step != steps.count or earlier.backwards != thread.backwards:
        return False
    return torch.is_grad_enabled() or earlier.opener != key


def _mode(module: nn.Module, *, grad: bool) -> Mode:
    if not module.training:
        return "eval"
    return "train" if grad else "no_grad"
