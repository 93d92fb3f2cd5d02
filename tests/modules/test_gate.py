"""What stands on an output and applies the backward value hooks to its gradient."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hookline
from hookline import BackwardHookGate
from hookline.errors import HookTypeError, HookValueError

GRAD = torch.arange(6.0).reshape(2, 3)


@pytest.fixture
def hooks():
    _layer, hooks = hookline.with_hooks(nn.Linear(2, 3))
    yield hooks
    hooks.registry.clear()


def test_v9_a_gate_can_be_called_by_itself(hooks):
    """Without a layer that runs: a gradient goes in, what flows on comes out."""
    hooks.add_backward_hook(lambda grad: grad * 2)

    assert torch.equal(BackwardHookGate(hooks.registry)(GRAD), GRAD * 2)


def test_v9_without_hooks_the_gradient_itself_comes_out(hooks):
    """Nothing is copied."""
    assert BackwardHookGate(hooks.registry)(GRAD) is GRAD


def test_v3_hooks_run_in_order_each_with_what_the_one_before_gave(hooks):
    """`(g + 1) * 2` and not `g * 2 + 1`; None leaves it unchanged."""
    seen = []
    hooks.add_backward_hook(lambda grad: grad + 1)
    hooks.add_backward_hook(seen.append)
    hooks.add_backward_hook(lambda grad: grad * 2)

    result = BackwardHookGate(hooks.registry)(GRAD)

    assert torch.equal(result, (GRAD + 1) * 2)
    assert torch.equal(seen[0], GRAD + 1)


def test_hooks_of_other_kinds_are_not_called(hooks):
    """The registry is shared by all kinds; a gate is for the backward ones."""
    hooks.add_forward_pre_hook(lambda x: x / 0)
    hooks.add_forward_hook(lambda x, out: out / 0)

    assert BackwardHookGate(hooks.registry)(GRAD) is GRAD


def test_v5_a_gate_sees_what_is_registered_when_it_is_called(hooks):
    """One made before a registration follows it, and its removal."""
    gate = BackwardHookGate(hooks.registry)

    handle = hooks.add_backward_hook(lambda grad: grad * 2)
    assert torch.equal(gate(GRAD), GRAD * 2)

    handle.remove()
    assert gate(GRAD) is GRAD


def test_p6_a_hook_removed_by_one_before_it_is_not_called(hooks):
    """Removal takes effect within the running event."""
    hooks.add_backward_hook(lambda grad: later.remove())
    later = hooks.add_backward_hook(lambda grad: grad * 0)

    assert BackwardHookGate(hooks.registry)(GRAD) is GRAD


def test_p6_a_hook_added_by_another_waits_for_the_next_gradient(hooks):
    """The running event keeps the hooks it began with."""
    hooks.add_backward_hook(lambda grad: hooks.add_backward_hook(lambda g: g + 1) and None)
    gate = BackwardHookGate(hooks.registry)

    assert gate(GRAD) is GRAD
    assert torch.equal(gate(GRAD), GRAD + 1)


def test_v2_an_error_comes_out_as_it_is_and_stops_the_others(hooks):
    """The same object; hooks behind it are not called."""
    error, seen = RuntimeError("stop"), []

    def fail(grad):
        raise error

    hooks.add_backward_hook(fail)
    hooks.add_backward_hook(seen.append)

    with pytest.raises(RuntimeError) as caught:
        BackwardHookGate(hooks.registry)(GRAD)
    assert caught.value is error
    assert seen == []


@pytest.mark.parametrize("given", [1.0, (GRAD,), [GRAD], False, "grad"])
def test_something_else_than_a_tensor_is_refused(hooks, given):
    """By its own name: `grad.append` in a lambda is easily returned by accident."""

    def careless(grad):
        return given

    hooks.add_backward_hook(careless)

    with pytest.raises(HookTypeError, match=r"careless must return a tensor or None, not"):
        BackwardHookGate(hooks.registry)(GRAD)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (GRAD.T, r"float32\[3, 2\] on cpu in place of float32\[2, 3\] on cpu"),
        (GRAD[:1], r"float32\[1, 3\]"),
        (GRAD.double(), r"float64\[2, 3\]"),
        (GRAD.to("meta"), r"on meta in place of .* on cpu"),
    ],
)
def test_another_shape_dtype_or_device_is_refused(hooks, given, named):
    """Autograd would cast or sum it silently, or fail far away."""
    hooks.add_backward_hook(lambda grad: given)

    with pytest.raises(HookValueError, match=named) as caught:
        BackwardHookGate(hooks.registry)(GRAD)
    assert "shape, dtype and device must stay" in str(caught.value)


def test_on_a_layer_the_gate_does_the_same_as_by_itself(hooks):
    """What arrives below the layer is what the gate makes of the gradient."""
    layer, hooks = hookline.with_hooks(nn.Identity())
    hooks.add_backward_hook(lambda grad: grad.clamp(max=2))
    hooks.add_backward_hook(lambda grad: grad * 3)
    x = torch.zeros(2, 3, requires_grad=True)

    layer(x).backward(GRAD)

    assert torch.equal(x.grad, BackwardHookGate(hooks.registry)(GRAD))
    assert torch.equal(x.grad, GRAD.clamp(max=2) * 3)


def test_on_a_layer_an_error_carries_the_place(hooks):
    """By itself a gate knows no module; in a backward the note names hook and module."""
    model = nn.Sequential(nn.Linear(2, 2))
    model[0], hooks = hookline.with_hooks(model[0])

    def wrong(grad):
        return grad[0]

    hooks.add_backward_hook(wrong)

    with pytest.raises(HookValueError) as caught:
        model(torch.ones(1, 2)).sum().backward()
    assert len(caught.value.__notes__) == 1
    for part in ("backward_pre hook", "wrong", "0 (Linear), call 0"):
        assert part in caught.value.__notes__[0]
