"""Whose call is it: the passes of a thread, and a call's place in them."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, Final
from weakref import ref

import torch
from torch import nn

from hookline.core.calls import Call, Key, Pass
from hookline.core.thread import Thread, local
from hookline.torch_base import private
from hookline.torch_base.paths import Root, roots

_TLS_NAME: Final = "hookline"


class Steps:
    """Counts optimizer steps while the engine is on (torch's global optimizer hook)."""

    def __init__(self) -> None:
        self.count = 0

    def taken(self, *_: object) -> None:
        """One more step was taken, by any optimizer."""
        self.count += 1


steps: Final = Steps()


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
    if thread.runs:
        return thread.runs[-1]
    return private.stashed(_TLS_NAME) if private.is_stashed(_TLS_NAME) else None


def lend_to_workers(run: Any) -> Any:
    """Let autograd's worker threads find a run, and its thread's hooks; gives the outer run."""
    outer = private.stashed(_TLS_NAME) if private.is_stashed(_TLS_NAME) else None
    private.stash(_TLS_NAME, run)
    return outer


def end_lending(outer: Any) -> None:
    """Undo `lend_to_workers`."""
    if outer is None:
        private.unstash(_TLS_NAME)
    else:
        private.stash(_TLS_NAME, outer)


def place(call: Call, module: nn.Module, key: Key[nn.Module], thread: Thread) -> tuple[str, ...]:
    """Settle which call this is: pass, index, parent, number; give the module's paths.

    Args:
        call: the new call, filled in here.
        module: the module that is called.
        key: a weak reference to it.
        thread: the thread's state, with the call not yet on its stack.
    """
    call.start = private.sequence_number()
    call.thread = thread.number
    if (thread.runs or thread.worker) and _is_repeat(call, key, thread):
        return call.running.root.seats.get(key, ("",))
    running = thread.running if thread.stack else None
    if running is None:
        running = _open_pass(module, key, thread)
    else:
        above = thread.stack[-1]
        call.parent = above if isinstance(above, Call) else None
    paths = running.root.seats.get(key)
    if paths is None:
        running, paths = _elsewhere(running, module, key, thread)
    call.running = running
    call.index = running.count(key, call.start)
    return paths


def open_outermost(module: nn.Module, thread: Thread) -> None:
    """Begin the pass of an outermost call that nobody watches."""
    thread.noted = None
    thread.running = None if thread.runs else _open_pass(module, ref(module), thread)


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


def _open_pass(module: nn.Module, key: Key[nn.Module], thread: Thread) -> Pass:
    root = roots.root_of(module)
    top = root.module
    mode = _mode(top if top is not None else module)
    if top is not module:
        # The root itself is not being called (a training step calls its children): what its
        # children do between two updates is one pass.
        for earlier in reversed(thread.passes):
            if earlier.root is root:
                if earlier.mode == mode and _continues(earlier, key, thread):
                    return earlier
                break
    opened = Pass(
        root,
        number=root.passes,
        step=steps.count,
        mode=mode,
        opener=key,
        backwards=thread.backwards,
        thread=thread.number,
    )
    root.passes += 1
    thread.passes.append(opened)
    return opened


def _continues(earlier: Pass, key: Key[nn.Module], thread: Thread) -> bool:
    if earlier.step != steps.count or earlier.backwards != thread.backwards:
        return False
    return torch.is_grad_enabled() or earlier.opener != key


def _mode(module: nn.Module) -> str:
    if not module.training:
        return "eval"
    return "train" if torch.is_grad_enabled() else "no_grad"


def _is_repeat(call: Call, key: Key[nn.Module], thread: Thread) -> bool:
    """Whether a call inside a backward repeats an earlier one, as checkpoints do.

    A checkpoint computes again what ran before the node that runs now; so the call repeats the
    latest one of its module that began before that node was made.
    """
    node = private.current_node()
    if node is None:
        return False
    latest = private.node_number(node) + 1
    for earlier in reversed(thread.passes):
        starts = earlier.starts.get(key)
        place = bisect_right(starts, latest) if starts else 0
        if place:
            call.recomputing = True
            call.running = earlier
            call.index = place - 1
            above = thread.stack[-1] if thread.stack else None
            call.parent = above if isinstance(above, Call) else None
            return True
    return False
