"""Hooks while a program is recorded: what stands in torch's place, and what is said once."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.fx
from torch import nn

import hookline
from hookline import HookWarning, paused, register_forward_hook, with_hooks


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        self.spare = nn.Sequential(nn.Linear(2, 2))

    def forward(self, x):
        return self.body(x)


def change(module, args, out):
    return out * 0


X = torch.ones(1, 2)


def test_the_tracer_is_torchs_own_again_after_the_last_hook():
    """Ours stands there only while hooks are on, and the tracer keeps nothing of it."""
    before, net = torch.fx.Tracer.trace, Net()
    with register_forward_hook(net, lambda *_: None):
        assert torch.fx.Tracer.trace is not before
        tracer = torch.fx.Tracer()
        with pytest.warns(HookWarning):
            tracer.trace(net)
        assert "call_module" not in vars(tracer)
    assert torch.fx.Tracer.trace is before


def test_only_modules_that_the_program_would_have_called_are_named():
    """One warning names them all; a hook on a part that does not run is nothing to warn of."""
    net = Net()
    handles = [register_forward_hook(m, change) for m in (net, net.body, net.body[0], net.spare)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.fx.symbolic_trace(net)
    (warning,) = caught
    assert str(warning.message) == (
        "torch.fx records the program without hooks: change on Net, change on Sequential left out. "
        "Remove them first, or record inside of hookline.paused()"
    )
    for handle in handles:
        handle.remove()


def test_a_tracer_that_goes_into_leaf_modules():
    """Whether a module is called later is its tracer's to say."""

    class Inside(torch.fx.Tracer):
        def is_leaf_module(self, m, module_qualified_name):
            return isinstance(m, nn.ReLU)

    net = Net()
    with register_forward_hook(net.body[0], change), register_forward_hook(net.body[1], change):
        with pytest.warns(HookWarning, match="hooks: change on Linear left out"):
            graph = Inside().trace(net)
        traced = torch.fx.GraphModule(net, graph)
        assert torch.equal(traced(X), torch.zeros(1, 2))
    assert torch.equal(traced(X), net(X))


def test_hooks_on_all_modules_and_wrappers_are_named_too():
    """Wherever a hook that changes values is registered."""
    layer, hooks = with_hooks(nn.Sequential(nn.ReLU()))
    net = nn.Sequential(layer)
    hooks.add_backward_hook(lambda gradient: gradient)
    with hookline.register_module_forward_hook(change), pytest.warns(HookWarning) as caught:
        torch.fx.symbolic_trace(net)
    text = str(caught[0].message)
    assert text.count("change on Sequential") == 2
    assert "<lambda> on Sequential" in text
    hooks.registry.clear()


def test_an_error_while_tracing_leaves_all_as_it_was():
    """The error is the model's own."""

    class Branches(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    net, tracer = Branches(), torch.fx.Tracer()
    with register_forward_hook(net, lambda *_: None):
        with pytest.warns(HookWarning), pytest.raises(torch.fx.proxy.TraceError):
            tracer.trace(net)
        assert "call_module" not in vars(tracer)
        assert torch.equal(net(X), X)


def test_paused_is_nested_and_ends_after_errors():
    """Hooks rest in this thread, forward and backward, until the outermost is left."""
    net, seen = Net(), []

    class Watcher(hookline.ModuleHook):
        def forward_postprocess(self, call):
            seen.append(call.label)

        def backward_postprocess(self, call):
            seen.append(f"backward {call.label}")

    with hookline.watch(net, Watcher(), where="body"):
        outs = []

        def fails():
            with paused():
                with paused():
                    net(X)
                outs.append(net(X))
                msg = "mine"
                raise ValueError(msg)

        with pytest.raises(ValueError, match="mine"):
            fails()
        outs[0].sum().backward()
        assert seen == []
        out = net(X)
        with paused():
            out.sum().backward()
        assert seen == ["body"]
        net(X).sum().backward()
        assert seen == ["body", "body", "backward body"]


def test_paused_concerns_one_thread():
    """Hooks of other threads go on."""
    import threading

    net, seen = Net(), []
    with register_forward_hook(net, lambda *_: seen.append(threading.current_thread().name)):
        with paused():
            net(X)
            worker = threading.Thread(target=net, args=(X,), name="other")
            worker.start()
            worker.join()
        net(X)
    assert seen == ["other", threading.current_thread().name]


def test_paused_rests_functions_too():
    """Both levels, and what is scoped as well as what is registered."""
    with hookline.function_hooks.TimerHook() as timer:
        with paused():
            torch.relu(X)
        torch.tanh(X)
    assert [row.name for row in timer.rows()] == ["tanh"]
