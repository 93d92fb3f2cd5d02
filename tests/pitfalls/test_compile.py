"""Pitfalls 35, 36, 37 and 39: hooks and what compiles, scripts, traces or exports models."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hookline
from hookline import (
    CompileError,
    register_forward_hook,
    register_full_backward_hook,
    register_module_forward_hook,
)

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    # The compiler asks regions' inputs for it, and hides the warning where warnings are no errors.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x):
        return self.linear(x)


def test_p35_a_hook_added_after_the_first_compiled_call_is_called():
    """Registering makes the code invalid that was compiled without it; so does removing."""
    net, x = Net(), torch.ones(1, 2)
    fast = torch.compile(net, backend="eager")
    plain = fast(x)
    with register_forward_hook(net.linear, lambda module, args, output: output * 0):
        assert torch.equal(fast(x), torch.zeros(1, 2))
    assert torch.equal(fast(x), plain)


def test_p36_a_backward_hook_runs_in_a_region():
    """It gets what it gets without a compiler, and may change it."""
    net, x = Net(), torch.ones(1, 2, requires_grad=True)
    seen = []

    def hook(module, grad_input, grad_output):
        seen.append((module, grad_output[0].clone()))
        return grad_input[0] * 2

    fast = torch.compile(net, backend="aot_eager")
    fast(x).sum().backward()
    plain, x.grad = x.grad, None
    with register_full_backward_hook(net.linear, hook):
        fast(x).sum().backward()
    assert torch.equal(x.grad, plain * 2)
    ((module, gradient),) = seen
    assert module is net.linear
    assert torch.equal(gradient, torch.ones(1, 2))


def test_p36_fullgraph_with_a_backward_hook_is_a_clear_error():
    """Ours, with the hook's name, the reason and what to do."""

    def watching(module, grad_input, grad_output):
        return None

    net, x = Net(), torch.ones(1, 2, requires_grad=True)
    fast = torch.compile(net, backend="eager", fullgraph=True)
    with register_full_backward_hook(net.linear, watching), pytest.raises(CompileError) as caught:
        fast(x)
    text = str(caught.value)
    assert text.startswith("fullgraph=True: hooks on Linear cannot be part of a graph")
    assert "watching. The module is called outside of the graph; to keep it inside, " in text


@pytest.mark.parametrize("late", [False, True])
def test_p36_a_global_hook_sees_each_module_once(late):
    """The model and what was compiled of it are one, registered early or late."""
    seen = []
    note = torch.compiler.disable(lambda module, args, output: seen.append(type(module).__name__))
    fast = torch.compile(Net(), backend="eager")
    if late:
        fast(torch.ones(1, 2))
    with register_module_forward_hook(note):
        fast(torch.ones(1, 2))
    assert seen == ["Linear", "OptimizedModule"]


def test_p37_a_hook_that_runs_after_errors_does_so_in_a_region():
    """Its module is called by Python."""

    class Fails(nn.Module):
        def forward(self, x):
            msg = "boom"
            raise ValueError(msg)

    class Recovers(nn.Module):
        def __init__(self):
            super().__init__()
            self.fails = Fails()
            self.linear = nn.Linear(2, 2)

        def forward(self, x):
            y = self.linear(x)
            try:
                return self.fails(y)
            except ValueError:
                return y

    net, x, log = Recovers(), torch.ones(1, 2), []
    fast = torch.compile(net, backend="eager")
    with register_forward_hook(net.fails, lambda *args: log.append(args[2]), always_call=True):
        net(x)
        assert torch.equal(fast(x), net.linear(x))
    assert log == [None, None]


RECORDERS = {
    "jit.trace": torch.jit.trace,
    "fx": lambda net, x: torch.fx.symbolic_trace(net),
    "export": lambda net, x: torch.export.export(net, (x,)).module(),
    "export strict": lambda net, x: torch.export.export(net, (x,), strict=True).module(),
    "make_fx": lambda net, x: torch.fx.experimental.proxy_tensor.make_fx(net)(x),
}


class Observer(hookline.ModuleHook):
    """Would fail on stand-ins for tensors."""

    def forward_postprocess(self, call):
        float(call.out.sum())


@pytest.mark.parametrize("recorder", RECORDERS)
@pytest.mark.parametrize("level", ["module", "function"])
def test_p39_an_observer_neither_fails_nor_is_baked_in(recorder, level):
    """It rests while a program is recorded, silently, at both levels."""
    net, x = Net(), torch.ones(1, 2)
    if level == "module":
        with Observer(), hookline.module_hooks.NonFiniteHook(), hookline.capture(net, "linear"):
            recorded = RECORDERS[recorder](net, x)
    else:
        with hookline.function_hooks.StatsHook(), hookline.function_hooks.PrintHook():
            recorded = RECORDERS[recorder](net, x)
    assert torch.equal(recorded(x), net(x))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("recorder", RECORDERS)
def test_p39_what_changes_values_is_left_out_and_named(recorder):
    """Hooks in torch's manner, value hooks and patches: never baked in, never dropped silently."""
    from torch.fx.experimental import proxy_tensor  # noqa: F401 - so that it is there

    net, x = nn.Sequential(Net()), torch.ones(1, 2)
    plain = net(x)
    layer, hooks = hookline.with_hooks(net[0])
    wrapped = nn.Sequential(layer)
    hooks.add_forward_hook(lambda value, output: output * 0)
    edit = {"0": hookline.edits.zero()}
    for model, put, name in (
        (net, lambda: register_forward_hook(net[0], lambda *args: args[2] * 0), "<lambda>"),
        (net, lambda: hookline.patch(net, edit), r"patch \d+"),
        (wrapped, hookline.paused, None),
    ):
        with put():
            if name is None:
                recorded = RECORDERS[recorder](model, x)
            else:
                with pytest.warns(hookline.HookWarning, match=f"{name} on Net left out"):
                    recorded = RECORDERS[recorder](model, x)
        assert torch.equal(recorded(x), plain)
    with pytest.warns(hookline.HookWarning, match="<lambda> on Net left out"):
        assert torch.equal(RECORDERS[recorder](wrapped, x)(x), plain)
    hooks.registry.clear()


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("recorder", [name for name in RECORDERS if name != "fx"])
def test_p39_functions_that_are_changed_are_left_out_and_named(recorder):
    """A function hook that replaces is no part of the program; fx calls leaf modules later."""
    net, x = Net(), torch.ones(1, 2)
    with hookline.patch(net, {"linear:linear": hookline.edits.zero()}):
        assert torch.equal(net(x), torch.zeros(1, 2))
        with pytest.warns(hookline.HookWarning, match=r"patch \d+ on functions left out"):
            recorded = RECORDERS[recorder](net, x)
    assert torch.equal(recorded(x), net(x))
