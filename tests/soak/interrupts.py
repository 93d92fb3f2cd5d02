"""KeyboardInterrupt at every single point of hookline's own code at which Python can deliver one.

Python looks for a pending Ctrl-C where a function begins and after a call of C code. The profile
function is called at just these points, and what it raises there comes out there. So a scenario is
run once for each of its points, and nothing may be left behind after any of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import hookline
from hookline import FunctionNode
from hookline.core.thread import local
from hookline.function_hooks import TimerHook as FunctionTimer
from hookline.functions.places import everywhere as functions
from hookline.module_hooks import TimerHook
from hookline.modules.places import everywhere, table
from hookline.torch_base.stack import end_lending, lent
from tests import logs
from tests.conftest import leftovers
from tests.custom import Double

OURS = str(Path(hookline.__file__).parent)
ENTRANCES = {"__exit__", "leave", "remove_object", "delete_hook", "remove", "close", "discard"}
"""Where these begin, hookline has not been told yet that it is to leave."""


class Points:
    """Counts the points of hookline's code, and interrupts at one of them.

    Args:
        number: the point; None to count only.
    """

    def __init__(self, number: int | None = None):
        self.number = number
        self.count = 0
        self.where = ""

    def __call__(self, frame, event, arg):
        if event not in ("call", "c_return") or not _is_ours(frame):
            return
        if event == "call" and (_is_entrance(frame) or frame.f_lasti > 0):
            return
        self.count += 1
        if self.count == self.number:
            sys.setprofile(None)
            code = frame.f_code
            file = code.co_filename.removeprefix(OURS)
            self.where = f"{event} {file}:{frame.f_lineno} {code.co_qualname} {arg or ''}"
            raise KeyboardInterrupt

    def run(self, work: Callable[[], None]) -> bool:
        """Run it; gives whether the interrupt came out."""
        sys.setprofile(self)
        try:
            work()
        except KeyboardInterrupt:
            return True
        finally:
            sys.setprofile(None)
        return False


def _is_ours(frame):
    return frame.f_code.co_filename.startswith(OURS)


def _is_entrance(frame):
    """Whether leaving begins here, and nothing of hookline has begun before."""
    if frame.f_code.co_qualname == "HookHandle.__enter__":  # registered, and `with` not begun yet
        return True
    while frame.f_code.co_name in ENTRANCES:
        frame = frame.f_back
        if not frame.f_code.co_filename.startswith(OURS):
            return True
    return False


class Log(logs.ModuleLog):
    """Notes module events."""

    timed = True
    needs_grad_input = True

    def __init__(self):
        self.events = []

    def _log(self, phase, call):
        self.events.append((phase, call.path, call.index, call.recomputing))


class FunctionLog(logs.FunctionLog):
    """Notes function events."""

    timed = True

    def __init__(self):
        self.events = []

    def _log(self, phase, function):
        self.events.append((phase, function.label, function.recomputing))


class Net(nn.Module):
    """Two layers, the second one checkpointed, and a custom function."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)
        self.tanh = FunctionNode(torch.tanh)

    def forward(self, x):
        x = self.tanh(self.first(x))
        x = checkpoint(self.second, x, use_reentrant=False)
        return Double.apply(x)


torch.manual_seed(0)
NET = Net()
X = torch.ones(2, 3)
ONES = torch.ones(2, 3)


def step():
    """One forward and backward, and what came out."""
    NET.zero_grad()
    out = NET(X)
    out.backward(ONES)
    return [out.detach(), *[p.grad for p in NET.parameters()]]


def module_scope(log):
    with Log() as hook:
        step()
    log += hook.events


def function_scope(log):
    with FunctionLog() as hook:
        step()
    log += hook.events


def both_scopes(log):
    with Log() as outer, FunctionLog() as inner, Log().renamed("again"):
        step()
    log += outer.events + inner.events


def timers(log):
    with TimerHook() as modules, FunctionTimer() as functions:
        step()
    log += [sorted(modules.summary()), sorted(functions.summary())]


def torchs_hooks(log):
    seen = []
    with (
        hookline.register_forward_pre_hook(NET.first, lambda m, args: seen.append("pre")),
        hookline.register_forward_hook(NET, lambda m, args, out: seen.append("forward")),
        hookline.register_full_backward_hook(NET.second, lambda m, a, b: seen.append("backward")),
        hookline.register_module_forward_hook(lambda m, args, out: seen.append("all")),
    ):
        step()
    log += seen


def wrapper(log):
    seen = []
    layer, hooks = hookline.with_hooks(NET.first)
    with (
        hooks.add_forward_hook(lambda x, out: seen.append("forward")),
        hooks.add_backward_hook(lambda gradient: seen.append("backward")),
        hookline.register_forward_hook(NET.first, lambda m, args, out: seen.append("inner")),
    ):
        layer(X).backward(ONES)
    log += seen


def watching(log):
    modules, functions = Log(), FunctionLog()
    with hookline.watch(NET, modules, functions, where=["first", "second"]):
        step()
    log += modules.events + functions.events


def capturing(log):
    with hookline.capture(NET, "first") as captured:
        step()
    log.append(len(captured))


def encoder(log):
    layer = nn.TransformerEncoderLayer(8, 2, 16).eval()
    with torch.no_grad(), Log() as hook:
        layer(torch.ones(3, 1, 8))
    log += hook.events


def failing(log):
    class Fails(Log):
        def backward_preprocess(self, call):
            super().backward_preprocess(call)
            raise ZeroDivisionError

        def aborted(self, call, exception):
            self.events.append(("aborted", call.path))

    with Fails() as hook, Log() as other:
        try:
            step()
        except ZeroDivisionError:
            log.append("raised")
    log += hook.events + other.events


def node(log):
    hook = FunctionLog()
    with hook_on(NET.tanh, hook):
        step()
    log += hook.events


class hook_on:  # noqa: N801 - used like a function
    """A function's own hook for a while."""

    def __init__(self, node, hook):
        self.node = node
        self.hook = hook

    def __enter__(self):
        self.node.add_hook(self.hook)

    def __exit__(self, *_):
        try:
            self.node.delete_hook(self.hook.name)
        except KeyboardInterrupt:  # what it found out before it began to remove may be cut off
            if self.hook.name in self.node.registry.named():
                self.node.delete_hook(self.hook.name)
            raise


SCENARIOS = (
    module_scope,
    function_scope,
    both_scopes,
    timers,
    torchs_hooks,
    wrapper,
    watching,
    capturing,
    encoder,
    failing,
    node,
)


def left() -> list[str]:
    """What is left behind, the clock included."""
    thread = local.thread
    found = leftovers()
    if not torch.is_grad_enabled():
        found.append("gradients are off")
    if thread.clock.depth:
        found.append(f"the clock stands, {thread.clock.depth} deep")
    if thread.hidden:
        found.append("functions are hidden")
    if lent() is not None:
        found.append("a backward run goes on for worker threads")
    if len(NET.tanh.registry):
        found.append("hooks on the function")
    return found


def tidy() -> None:
    """Put all right, so that one fault is not the next one's."""
    thread = local.thread
    thread.stack.clear()
    thread.runs.clear()
    thread.busy = thread.hidden = False
    thread.culprit = None
    end_lending(None)
    torch.set_grad_enabled(True)
    thread.clock.__init__()
    scopes = thread.modules, thread.functions
    for registry in (*table.values(), everywhere, functions, *scopes, NET.tanh.registry):
        registry.clear()
    with FunctionLog():
        pass


def points_of(scenario) -> int:
    """How many points it has, once everything is loaded and cached."""
    scenario([])
    points = Points()
    points.run(lambda: scenario([]))
    return points.count


def faults(scenario, numbers) -> Iterator[str]:
    """Interrupt a scenario at each of some points; says after which something was left."""
    expected: list[object] = []
    scenario(expected)
    for number in numbers:
        points = Points(number)
        points.run(lambda: scenario([]))
        found = left()
        if found:
            yield f"{scenario.__name__} {number}, {points.where}: {found}"
            tidy()
        again: list[object] = []
        scenario(again)
        if again != expected:
            yield f"{scenario.__name__} {number}, {points.where}: other events afterwards"
            tidy()
