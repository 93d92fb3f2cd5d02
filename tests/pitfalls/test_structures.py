"""What torch's backward hooks miss of structured inputs and outputs."""

import dataclasses
from collections import OrderedDict
from typing import NamedTuple

import pytest
import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutput

from hookline import (
    GradInput,
    Inputs,
    ModuleHook,
    register_forward_pre_hook,
    register_full_backward_hook,
    register_full_backward_pre_hook,
    with_hooks,
)
from hookline.torch_base.tree import map_tensors


@dataclasses.dataclass
class Out:
    y: torch.Tensor
    note: str = "as it was"


class Pair(NamedTuple):
    y: torch.Tensor
    other: object


class Wrapped(nn.Module):
    def __init__(self, wrap):
        super().__init__()
        self.wrap = wrap

    def forward(self, x):
        return self.wrap(x * 2)


OUTPUTS = {
    "dict": (lambda y: {"y": y, "n": 3}, lambda out: out["y"]),
    "list": (lambda y: [y], lambda out: out[0]),
    "dataclass": (Out, lambda out: out.y),
    "named tuple": (lambda y: Pair(y, None), lambda out: out.y),
    "ordered dict": (lambda y: OrderedDict(y=y), lambda out: out["y"]),
    "model output": (lambda y: BaseModelOutput(last_hidden_state=y), lambda out: out[0]),
    "nested": (lambda y: ({"a": [Out(y)]}, 7), lambda out: out[0]["a"][0].y),
}


@pytest.mark.parametrize("kind", OUTPUTS)
def test_p09_gradients_of_any_output_in_its_structure(kind):
    """Dict, list, dataclass and the like: the hooks run, with the gradient where the tensor was."""
    wrap, unwrap = OUTPUTS[kind]
    module, seen = Wrapped(wrap), []
    x = torch.ones(2, requires_grad=True)
    with (
        register_full_backward_pre_hook(module, lambda module, grad: seen.append(grad)),
        register_full_backward_hook(module, lambda module, gi, go: seen.extend([go, gi])),
    ):
        out = module(x)
        (unwrap(out) * 3).sum().backward()

    before, after, of_input = seen
    for grad in (before, after):
        assert type(grad) is type(out)
        assert unwrap(grad).tolist() == [3.0, 3.0]
    assert of_input[0].tolist() == x.grad.tolist() == [6.0, 6.0]


@pytest.mark.parametrize("kind", OUTPUTS)
def test_p09_gradients_can_be_replaced_in_any_structure(kind):
    """A hook that returns the structure it got, with other gradients, changes what flows on."""
    wrap, unwrap = OUTPUTS[kind]
    module = Wrapped(wrap)

    def double(module, grad):
        return map_tensors(lambda tensor: tensor * 2, grad)

    x = torch.ones(2, requires_grad=True)
    with register_full_backward_pre_hook(module, double):
        unwrap(module(x)).sum().backward()

    assert x.grad.tolist() == [4.0, 4.0]


def test_p09_an_output_without_tensors():
    """There is nothing to watch, and nothing is wrong with that."""
    module, seen = Wrapped(lambda y: None), []
    with register_full_backward_hook(module, lambda *_: seen.append(1)):
        assert module(torch.ones(2, requires_grad=True)) is None
    assert seen == []


class Deep(nn.Module):
    def forward(self, x):
        return x * 2, [x * 3, {"deep": (x * 5,)}]


@pytest.mark.parametrize(
    ("pick", "expected"),
    [
        (lambda out: out[0], (1.0, [None, {"deep": (None,)}])),
        (lambda out: out[1][0], (None, [1.0, {"deep": (None,)}])),
        (lambda out: out[1][1]["deep"][0], (None, [None, {"deep": (1.0,)}])),
        (lambda out: out[0] + out[1][1]["deep"][0], (1.0, [None, {"deep": (1.0,)}])),
    ],
    ids=["first", "in a list", "in a tuple in a dict in a list", "two"],
)
def test_p10_tensors_at_any_depth(pick, expected):
    """A gradient through one deep output alone fires the hooks, with None for the others."""
    module, seen = Deep(), []
    with register_full_backward_hook(module, lambda module, gi, go: seen.append((go, gi))):
        pick(module(torch.ones(1, requires_grad=True))).sum().backward()

    ((grad, of_input),) = seen
    assert as_numbers(grad) == expected
    assert of_input[0] is not None


def as_numbers(value):
    if isinstance(value, dict):
        return {key: as_numbers(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(as_numbers(inner) for inner in value)
    return None if value is None else value.item()


@pytest.mark.parametrize(
    ("call", "positional", "keywords"),
    [
        (lambda layer, x: layer(x), 1, []),
        (lambda layer, x: layer(input=x), 0, ["input"]),
    ],
    ids=["positional", "keyword"],
)
def test_p11_gradients_of_keyword_inputs(call, positional, keywords):
    """They are delivered by name, at the end of the module's backward, without a warning."""
    layer, seen = nn.Linear(3, 2), []

    def hook(module, grad_input, grad_output):
        seen.append((grad_input, module.weight.grad is not None))

    x = torch.ones(1, 3, requires_grad=True)
    with register_full_backward_hook(layer, hook):
        call(layer, x).sum().backward()

    ((grad_input, parameters_done),) = seen
    assert len(grad_input) == positional
    assert list(grad_input.kwargs) == keywords
    (gradient,) = [*grad_input, *grad_input.kwargs.values()]
    assert torch.equal(gradient, layer.weight.sum(0, keepdim=True))
    assert parameters_done


def test_p11_structured_keyword_inputs():
    """Tensors in a mapping given by keyword have their gradients in one; they can be replaced."""

    class Mixes(nn.Module):
        def forward(self, x, *, extra, scale=1.0):
            return x + extra["a"] * 2 + extra["b"][0] * 3 * scale

    seen = []

    def hook(module, grad_input, grad_output):
        seen.append((len(grad_input), grad_input.kwargs))
        extra = {"a": grad_input.kwargs["extra"]["a"] * 10, "b": [None]}
        return GradInput.of(tuple(grad_input), grad_input.kwargs | {"extra": extra})

    x, a, b = (torch.ones(1, requires_grad=True) for _ in range(3))
    module = Mixes()
    with register_full_backward_hook(module, hook):
        module(x, extra={"a": a, "b": [b]}, scale=2.0).sum().backward()

    ((count, kwargs),) = seen
    assert count == 1
    assert as_numbers(kwargs["extra"]) == {"a": 2.0, "b": [6.0]}
    assert kwargs["scale"] is None
    assert (x.grad.item(), a.grad.item()) == (1.0, 20.0)
    assert b.grad is None


class Same(nn.Module):
    def forward(self, value):
        return value


@pytest.mark.parametrize("value", [(1, 2), Pair(torch.ones(1), 2), [1, 2], {"a": 1}, 7])
@pytest.mark.parametrize(
    "give",
    [lambda value: Inputs((value,)), lambda value: (value,)],
    ids=["Inputs", "a tuple of arguments"],
)
def test_p17_any_argument_can_be_replaced(value, give):
    """Also one that is a tuple itself, without being taken for the arguments."""
    module = Same()
    with register_forward_pre_hook(module, lambda module, args: give(value)):
        assert module("old") is value


def test_p17_a_returned_tuple_is_never_torn_apart_silently():
    """An exact tuple of another length than the arguments is an error that shows the way out."""
    module = Same()
    with (
        register_forward_pre_hook(module, lambda module, args: args[0]),
        pytest.raises(TypeError, match=r"2 positional argument\(s\) in place of 1.*Inputs\("),
    ):
        module((1, 2))


def test_p17_named_tuples_and_lists_are_values():
    """Only an exact tuple can mean the arguments."""
    module, pair = Same(), Pair(torch.ones(1), 2)
    with register_forward_pre_hook(module, lambda module, args: pair):
        assert module("old") is pair
    with register_forward_pre_hook(module, lambda module, args: [7]):
        assert module("old") == [7]


def test_p17_in_the_other_manners():
    """A value hook gives the bare value; a hook object replaces by `Inputs` or the arguments."""
    module, hooks = with_hooks(Same())
    with hooks.add_forward_pre_hook(lambda value: (1, 2)):
        assert module("old") == (1, 2)

    class Replaces(ModuleHook):
        def forward_preprocess(self, call):
            call.replace(Inputs(((1, 2),)))

    with Replaces():
        assert Same()("old") == (1, 2)
