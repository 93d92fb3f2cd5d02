"""Compiled regions as hook objects see them: one call, no graph break, nothing compiled again."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter, CompileCounterWithBackend

from hookline import (
    FunctionHook,
    FunctionNode,
    add_hook,
    capture,
    edits,
    hooks_of,
    module_hooks,
    patch,
    watch,
)
from tests.logs import PHASES, ModuleLog

pytestmark = pytest.mark.usefixtures("fresh_compiler")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.body = nn.Sequential(nn.ReLU(), nn.Linear(4, 4))

    def forward(self, x):
        return self.body(self.first(x))


class Events(ModuleLog):
    def __init__(self):
        self.seen = []

    def _log(self, phase, call):
        self.seen.append((phase, call.label, call.type))


class Functions(FunctionHook):
    def __init__(self):
        self.seen = []

    def forward_postprocess(self, function, in_data):
        self.seen.append(function.name)

    def backward_postprocess(self, function, in_data, out_grad):
        self.seen.append(f"backward {function.name}")


MODULE_HOOKS = {
    "timer": module_hooks.TimerHook,
    "stats": lambda: module_hooks.StatsHook(every=1),
    "capture": module_hooks.CaptureHook,
    "nonfinite": module_hooks.NonFiniteHook,
    "ranges": module_hooks.RangeHook,
    "own": Events,
}
PUT = {
    "scope": lambda model, hook: hook,
    "watch": watch,
    "add_hook": add_hook,
    "capture": lambda model, hook: capture(model, ""),
    "patch": lambda model, hook: patch(model, {"": edits.scale(1.0)}),
}


def step(model, x):
    out = model(x)
    out.sum().backward()
    return out


@pytest.mark.parametrize("first", ["compiled before", "compiled inside"])
@pytest.mark.parametrize(
    ("put", "make"),
    [("scope", name) for name in MODULE_HOOKS] + [(put, "timer") for put in PUT if put != "scope"],
)
def test_hook_objects_compile_nothing_again(put, make, first):
    """However they are put, before or after the first compile: one graph, in and after them."""
    net, x, counter = Net(), torch.randn(2, 4), CompileCounter()
    fast = torch.compile(net, backend=counter, fullgraph=True)
    if first == "compiled before":
        step(fast, x)
    for _ in range(3):
        with PUT[put](fast, MODULE_HOOKS[make]()):
            out = step(fast, x)
    assert torch.equal(out, net(x))
    step(fast, x)
    assert counter.frame_count == 1


@pytest.mark.parametrize("make", ["before", "inside"])
def test_a_region_is_one_call(make):
    """With begin and end in both directions, under the path and type of the model."""
    net, x = Net(), torch.randn(2, 4)
    if make == "before":
        fast = torch.compile(net, backend="aot_eager")
    with Events() as events:
        if make == "inside":
            fast = torch.compile(net, backend="aot_eager")
        step(fast, x)
    assert events.seen == [(phase, "Net", "Net") for phase in PHASES]


def test_a_hook_object_on_the_model_sees_the_region():
    """`add_hook` and `watch` on the model that was compiled, before or after it was."""
    net, x = Net(), torch.randn(2, 4)
    for put in (add_hook, watch):
        events = Events()
        with put(net, events):
            fast = torch.compile(net, backend="aot_eager")
            step(fast, x)
            assert events.seen == [(phase, "Net", "Net") for phase in PHASES]
        events.seen.clear()
        with put(net, events):
            step(fast, x)
            rows = [row for row in hooks_of(fast) if row.path == ""]
        assert len(events.seen) == 4
        assert len(rows) == 4
        assert hooks_of(fast) == []


def test_a_region_is_one_function():
    """Where it is differentiated, the function is `CompiledFunction`; one more compile in all."""
    net, x = Net(), torch.randn(2, 4, requires_grad=True)
    counter = CompileCounterWithBackend("aot_eager")
    fast = torch.compile(net, backend=counter, fullgraph=True)
    step(fast, x)
    for _ in range(3):
        with Functions() as functions:
            step(fast, x)
        assert functions.seen == [
            "CompiledFunction",
            "sum",
            "backward sum",
            "backward CompiledFunction",
        ]
    step(fast, x)
    assert counter.frame_count == 2


def test_a_function_node_of_a_compiled_function_compiles_nothing_again():
    """It is on no mode's stack, which compiled code guards."""
    x, counter = torch.randn(2, 4, requires_grad=True), CompileCounter()
    node = FunctionNode(torch.compile(lambda x: x.sin() * 2, backend=counter), "wave")
    node(x)
    functions = Functions()
    node.add_hook(functions)
    node(x).sum().backward()
    assert functions.seen == ["wave", "backward wave"]
    assert counter.frame_count == 1


def test_what_is_hidden_in_a_region_is_reported():
    """The report of what never fired names the modules inside, and the way out works."""
    net, x = Net(), torch.randn(2, 4)
    fast = torch.compile(net, backend="eager")
    with watch(fast, Events()) as watched:
        step(fast, x)
        silent = {row.path: row.cause for row in watched.silent()}
    assert silent == dict.fromkeys(["first", "body", "body.0", "body.1"], "compiled")
    events = Events()
    with watch(fast, events) as watched, torch.compiler.set_stance("force_eager"):
        step(fast, x)
        assert watched.silent() == []
    assert [label for phase, label, _ in events.seen if phase == "forward_pre"] == [
        "Net",
        "first",
        "body",
        "body.0",
        "body.1",
    ]


def test_threads_have_scopes_of_their_own():
    """A scope in this thread takes no part in what another compiles."""
    import threading

    net, x, outs = Net(), torch.randn(2, 4), []
    counter = CompileCounter()
    fast = torch.compile(net, backend=counter, fullgraph=True)
    with Events() as events:
        worker = threading.Thread(target=lambda: outs.append(fast(x)))
        worker.start()
        worker.join()
    assert torch.equal(outs[0], net(x))
    assert events.seen == []
