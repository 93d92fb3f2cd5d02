"""Gradients seen where tensors were made, with nothing put into the graph."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

import hookline
from hookline.torch_base.peek import peek
from hookline.torch_base.private import MARKS, node_metadata


class Looker(hookline.ModuleHook):
    """Looks at the gradients of the inputs of every module, and keeps what it sees."""

    def __init__(self):
        self.seen = []

    def forward_preprocess(self, call):
        inputs = [(f"args[{place}]", each) for place, each in enumerate(call.args)]
        peek(call, inputs, self, Looker.look)

    def backward_preprocess(self, call):
        """So that backward runs are planned."""

    def look(self, which, gradient):
        uses = [(call.path, name) for call, name in which.uses]
        self.seen.append((uses, gradient.clone()))


def test_the_gradient_of_an_input_is_that_of_plain_autograd():
    """Between layers, each input's gradient is seen once, in the order of the backward."""
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    x = torch.randn(4, 2)
    with Looker() as looker:
        model(x).sum().backward()
    hidden = model[0](x)
    active = hidden.tanh()
    gradients = torch.autograd.grad(model[2](active).sum(), [active, hidden])
    assert [uses for uses, _ in looker.seen] == [[("2", "args[0]")], [("1", "args[0]")]]
    for (_, found), expected in zip(looker.seen, gradients, strict=True):
        assert torch.equal(found, expected)


def test_a_tensor_that_is_used_twice_is_seen_once_with_both_uses():
    """Its gradient is the sum over both, and one mark serves them."""

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = nn.Tanh(), nn.Sigmoid()

        def forward(self, x):
            return self.left(x) + self.right(x)

    x = torch.randn(3, requires_grad=True)
    y = x * 2
    with Looker() as looker:
        Twice()(y).sum().backward()
    (uses, gradient), *others = looker.seen
    assert not others
    assert uses == [("", "args[0]"), ("left", "args[0]"), ("right", "args[0]")]
    assert torch.equal(gradient * 2, x.grad)


def test_leaves_and_tensors_without_gradient_are_left_out():
    """A leaf has no node of its own."""
    with Looker() as looker:
        nn.Tanh()(torch.randn(2, requires_grad=True)).sum().backward()
        nn.Tanh()(torch.randn(2))
    assert looker.seen == []


def test_two_who_look_do_not_disturb_each_other():
    """Each has its own mark on a tensor."""
    x = torch.randn(2, requires_grad=True)
    y = x * 1
    with Looker() as one, Looker().renamed("two") as two:
        nn.Tanh()(y).sum().backward()
    assert len(one.seen) == len(two.seen) == 1


def test_nothing_is_put_into_the_graph():
    """The output's node and its inputs are those without a look."""
    x = torch.randn(2, requires_grad=True)
    y = x * 1
    with Looker():
        out = nn.Tanh()(y)
    assert out.grad_fn.name() == "TanhBackward0"
    assert out.grad_fn.next_functions[0][0] is y.grad_fn
    assert len(node_metadata(y.grad_fn)[MARKS]) == 1


def test_the_tensor_of_several_is_the_one_that_was_given():
    """Of a node with several outputs, the gradient of the right one is seen."""
    x = torch.randn(4, requires_grad=True)
    low, high = (x * 1).chunk(2)
    with Looker() as looker:
        (nn.Tanh()(high).sum() + low.sum() * 5).backward()
    assert len(looker.seen) == 1
    assert torch.equal(looker.seen[0][1], x.grad[2:])


def test_who_looks_is_held_weakly_and_then_forgotten():
    """The graph keeps nobody alive; a gradient that nobody waits for is passed over."""
    x = torch.randn(2, requires_grad=True)
    looker = Looker()
    with looker:
        out = nn.Tanh()(x * 1)
    alive = weakref.ref(looker)
    del looker
    gc.collect()
    assert alive() is None
    with Looker().renamed("another"):
        out.sum().backward()
    assert x.grad is not None


def test_an_error_while_looking_comes_out_of_backward():
    """The same object, and nothing stays behind."""

    class Fails(Looker):
        def look(self, which, gradient):
            raise LookupError(which.describe())

        def forward_preprocess(self, call):
            peek(call, [("x", call.args[0])], self, Fails.look)

    model = nn.Sequential(nn.Tanh(), nn.Tanh())
    with pytest.raises(LookupError, match="x of 1 \\(Tanh\\), call 0"), Fails():
        model(torch.randn(2, requires_grad=True)).sum().backward()


def test_tensors_of_one_node_are_told_apart():
    """Two outputs of one function, each given to a module: two gradients."""
    x = torch.randn(4, requires_grad=True)
    low, high = (x * 1).chunk(2)
    with Looker() as looker:
        (nn.Tanh()(high).sum() + nn.Sigmoid()(low).sum()).backward()
    assert len(looker.seen) == 2
    assert sum(torch.equal(g, x.grad[:2]) for _, g in looker.seen) == 1
    assert sum(torch.equal(g, x.grad[2:]) for _, g in looker.seen) == 1


def test_modules_called_in_a_look_fire_no_hooks():
    """They are part of the hook (C11)."""

    class Calls(Looker):
        def forward_preprocess(self, call):
            self.seen.append(call.type)
            peek(call, [("x", call.args[0])], self, Calls.look)

        def look(self, which, gradient):
            nn.Sigmoid()(gradient)

    x = torch.randn(2, requires_grad=True)
    with Calls() as looker:
        nn.Tanh()(x * 1).sum().backward()
    assert looker.seen == ["Tanh"]


def test_functions_of_a_look_fire_no_hooks():
    """What is computed in a look is no function of the program's (C11)."""
    names = []

    class Names(hookline.FunctionHook):
        def forward_postprocess(self, function, in_data):
            names.append(function.name)

    x = torch.randn(2, requires_grad=True)
    with Names(), Looker() as looker:
        loss = nn.Tanh()(x * 1).sum()
        loss.backward()
    assert len(looker.seen) == 1
    assert names == ["mul", "tanh", "sum"]
