"""Module hooks and compiled regions."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

import hookline

pytestmark = pytest.mark.usefixtures("fresh_compiler")


def compiled(model):
    """The model compiled without graph breaks, and what counts its graphs."""
    counter = CompileCounter()
    return torch.compile(model, backend=counter, fullgraph=True), counter


def small():
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU())


def test_hooks_registered_before_are_traced():
    """Pre- and forward hooks change what flows as they do in eager, with no graph break."""
    model, x = small(), torch.randn(2, 4)
    plain = model(x)
    fast, counter = compiled(model)
    with (
        hookline.register_forward_pre_hook(model[1], lambda module, args: (args[0] * 2,)),
        hookline.register_forward_hook(model[0], lambda module, args, out: out + 1),
    ):
        assert torch.equal(fast(x), torch.relu((model[0].forward(x) + 1) * 2))
        assert not torch.equal(fast(x), plain)
        assert counter.frame_count == 1


def test_removed_hooks_are_gone():
    """Removing a traced hook compiles the region again."""
    model, x = small(), torch.randn(2, 4)
    plain = model(x)
    fast, _ = compiled(model)
    handle = hookline.register_forward_hook(model[0], lambda module, args, out: out + 1)
    fast(x)
    with hookline.register_forward_hook(nn.Linear(1, 1), lambda *_: None):
        handle.remove()
        assert torch.equal(fast(x), plain)


def test_hooks_registered_later_are_traced_where_one_was_on():
    """Code compiled while hooks were on is compiled again for a hook on another module."""
    model, x = small(), torch.randn(2, 4)
    fast, _ = compiled(model)
    with hookline.register_forward_hook(model[0], lambda module, args, out: out + 1):
        fast(x)
        with hookline.register_forward_hook(model[1], lambda module, args, out: out + 5):
            assert torch.equal(fast(x), model(x))


def test_value_hooks_are_traced():
    """A wrapper in a compiled model runs its hooks."""
    layer, hooks = hookline.with_hooks(nn.Linear(4, 4))
    hooks.add_forward_pre_hook(lambda value: value - 1)
    hooks.add_forward_hook(lambda value, out: out * 3)
    model, x = nn.Sequential(layer, nn.ReLU()), torch.randn(2, 4)
    fast, counter = compiled(model)
    assert torch.equal(fast(x), model(x))
    assert counter.frame_count == 1


def test_scopes_see_one_call_and_recompile_nothing():
    """A region is one module call to a scope, forward and backward; entering compiles nothing."""
    model, x = small(), torch.randn(2, 4)
    fast, counter = compiled(model)
    fast(x)
    for _ in range(3):
        with hookline.module_hooks.TimerHook() as timer:
            fast(x).sum().backward()
        calls = [(row.path, row.direction, row.calls) for row in timer.rows()]
        assert calls == [("", "forward", 1), ("", "backward", 1)]
    fast(x)
    assert counter.frame_count == 1
