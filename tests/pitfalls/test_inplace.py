"""What torch's backward hooks do to in-place operations and to the identity of tensors.

The numbers are those of the list of pitfalls in torch 2.13 that this library was built against.
"""

from contextlib import ExitStack

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from hookline import (
    ModuleHook,
    register_forward_hook,
    register_full_backward_hook,
    register_full_backward_pre_hook,
    with_hooks,
)

DIGITS = torch.tensor(load_digits().images[:4], dtype=torch.float32).unsqueeze(1) / 16


class Watches(ModuleHook):
    """Sees all phases, and the gradients of the inputs if it is told to."""

    def __init__(self, *, inputs=False):
        self.needs_grad_input = inputs
        self.gradients = []

    def backward_postprocess(self, call):
        self.gradients.append((call.path, call.grad_input, call.grad_output))


def observe(manner, module):
    """Backward hooks that only look, on all modules of a model."""
    if manner == "scope":
        return [Watches()]
    if manner == "scope with inputs":
        return [Watches(inputs=True)]
    register = {
        "pre-hook": register_full_backward_pre_hook,
        "hook": register_full_backward_hook,
    }[manner]
    return [register(each, lambda *_: None) for each in module.modules()]


MANNERS = ["scope", "scope with inputs", "pre-hook", "hook"]
OBSERVERS = ["scope", "pre-hook"]


def gradients(module, x, entered=()):
    """The output, and the gradients of input and parameters."""
    x = x.clone().requires_grad_()
    with ExitStack() as stack:
        for each in entered:
            stack.enter_context(each)
        y = module(x)
        wanted = [x, *module.parameters()]
        return [y.detach().clone(), *torch.autograd.grad(y.square().sum(), wanted)]


class AddsToOutput(nn.Module):
    """Changes the output of a layer in place."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)

    def forward(self, x):
        y = self.conv(x)
        y += 1
        return y.mul_(2)


def conv_relu():
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(inplace=True), nn.Dropout(0.0, inplace=True))


@pytest.mark.parametrize("manner", MANNERS)
@pytest.mark.parametrize("build", [conv_relu, AddsToOutput])
def test_p05_in_place_operations_on_an_output_stay_legal(manner, build):
    """A watched layer may feed an in-place operation; results are bitwise those without hooks."""
    module = build()
    expected = gradients(module, DIGITS)
    found = gradients(module, DIGITS, observe(manner, module))

    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("register", [register_full_backward_pre_hook, register_full_backward_hook])
def test_p05_p52_the_gradient_is_that_of_the_value_before_the_change(register):
    """What an in-place operation does afterwards is no part of the layer's output."""
    module, seen = nn.Linear(2, 2), []
    x = torch.ones(1, 2)
    with register(module, lambda module, *gradients: seen.append(gradients[-1][0].tolist())):
        y = module(x)
        y.mul_(10)
        y.sum().backward()

    assert seen == [[[10.0, 10.0]]]
    assert module.weight.grad.tolist() == [[10.0, 10.0]] * 2


class Triples(nn.Module):
    def forward(self, x):
        return x.mul_(3)


def test_p52_each_module_sees_the_gradient_of_its_own_value():
    """An in-place module between two others: each output has a gradient of its own."""
    net = nn.Sequential(nn.Linear(1, 1), Triples(), nn.Linear(1, 1))
    nn.init.constant_(net[2].weight, 5.0)
    watches = Watches()
    with watches:
        net(torch.ones(1, 1)).sum().backward()

    seen = {path: grad[0].item() for path, _, grad in watches.gradients}
    assert seen == {"": 1.0, "2": 1.0, "1": 5.0, "0": 15.0}
    assert net[0].weight.grad.item() == 15.0


class WriteIntoBuffer(nn.Module):
    def forward(self, x, buffer):
        buffer[0] = x
        return buffer.sum()


class WriteDetached(nn.Module):
    def forward(self, x, buffer):
        buffer.copy_(x.detach())
        return x * 2


class ChangesInput(nn.Module):
    def forward(self, x, buffer):
        return x.add_(1).exp() + buffer


@pytest.mark.parametrize("manner", MANNERS)
@pytest.mark.parametrize("cls", [WriteIntoBuffer, WriteDetached, ChangesInput])
def test_p06_a_module_may_write_into_its_inputs(manner, cls):
    """A cache is filled, an input changed in place: the same result, in the same tensors."""

    def run(entered):
        leaf, buffer = torch.ones((), requires_grad=True), torch.zeros(2)
        with ExitStack() as stack:
            for each in entered:
                stack.enter_context(each)
            y = module(leaf * 1, buffer)
            (gradient,) = torch.autograd.grad(y.sum(), leaf)
        return [y.detach(), buffer.detach(), gradient]

    module = cls()
    assert all(map(torch.equal, run(observe(manner, module)), run([])))


def test_p06_the_gradient_of_an_input_that_was_changed_is_not_known():
    """After an in-place operation on an input, the hook gets None for it and the rest as ever."""
    seen = []
    module = ChangesInput()
    x, buffer = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    with register_full_backward_hook(module, lambda module, gi, go: seen.append(gi)):
        module(x * 1, buffer).sum().backward()

    ((of_x, of_buffer),) = seen
    assert of_x is None
    assert torch.equal(of_buffer, torch.ones(2))
    assert torch.allclose(x.grad, torch.full((2,), 2.0).exp())


def test_p06_inputs_without_gradient_are_never_touched():
    """The module gets the very buffer that the caller gave, whatever the hook asks for."""
    got = []

    class Takes(nn.Module):
        def forward(self, x, buffer, *, mask):
            got.extend([x, buffer, mask])
            return x * buffer

    x, buffer = torch.ones(2, requires_grad=True), torch.ones(2)
    mask = torch.ones(2, dtype=torch.bool)
    with Watches(inputs=True):
        Takes()(x, buffer, mask=mask)

    assert got[0] is not x
    assert got[1] is buffer
    assert got[2] is mask


class LooksAtInput(nn.Module):
    def forward(self, x):
        self.seen = {
            "object": id(x),
            "type": type(x),
            "leaf": x.is_leaf,
            "tag": x.__dict__.get("tag"),
        }
        return x * 2


@pytest.mark.parametrize("manner", OBSERVERS)
@pytest.mark.parametrize("make", [nn.Parameter, lambda x: x.requires_grad_(), lambda x: x])
def test_p07_observing_keeps_the_identity_of_inputs(manner, make):
    """The module gets the caller's object: a parameter stays one, attributes are there."""
    module, x = LooksAtInput(), make(torch.ones(2))
    x.tag = "kept"
    module(x)
    expected = module.seen
    for hook in observe(manner, module):
        with hook:
            module(x)

    assert module.seen == expected
    assert module.seen["object"] == id(x)
    assert module.seen["tag"] == "kept"


@pytest.mark.parametrize("manner", MANNERS)
@pytest.mark.parametrize("hooked_by", ["forward hook", "value hook", "scope"])
def test_p08_a_forward_hook_sees_the_object_that_is_returned(manner, hooked_by):
    """What it sets on the output is there for the caller, also with backward hooks present."""
    module = nn.Linear(2, 2)

    def tag(*arguments):
        arguments[-1].tag = "set"
        arguments[-1].retain_grad()

    class Tags(ModuleHook):
        def forward_postprocess(self, call):
            tag(call.out)

    if hooked_by == "value hook":
        module, hooks = with_hooks(module)
        hooked = hooks.add_forward_hook(tag)
    else:
        hooked = register_forward_hook(module, tag) if hooked_by == "forward hook" else Tags()
    (other,) = observe(manner, module)
    with other, hooked:
        y = module(torch.ones(1, 2, requires_grad=True))
        y.sum().backward()

    assert y.tag == "set"
    assert y.grad.tolist() == [[1.0, 1.0]]
