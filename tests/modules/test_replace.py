"""What a hook gives back, turned into the inputs, output or gradients of a call."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

import hookline
from hookline.core.calls import Inputs
from hookline.errors import HookTypeError, HookValueError
from hookline.modules.replace import (
    GradInput,
    bare_or_inputs,
    new_gradients,
    new_inputs,
    new_output,
)
from hookline.torch_base.outline import Outline
from hookline.torch_base.tree import Tree

X, Y, MASK = torch.ones(2, 3), torch.zeros(2, 3), torch.ones(3)


class Pair(NamedTuple):
    first: object
    second: object


@dataclass
class Answer:
    logits: object
    label: str = "cat"


class Thrice(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(3, 3))

    def forward(self, x):
        return self.encoder(self.encoder(self.encoder(x)))


MODEL = Thrice()


def call_with(*args, out=None, **kwargs):
    """The third call of `encoder.0`, as the engine made it, with other values in it."""
    calls = []

    class Keep(hookline.ModuleHook):
        def forward_preprocess(self, call):
            calls.append(call)

    with Keep():
        MODEL(X)
    call = next(c for c in calls if c.path == "encoder.0" and c.index == 2)
    call.args, call.kwargs, call.out = args, kwargs, out
    return call


# Inputs.


def test_v10_a_single_positional_argument_is_given_bare():
    """Also where it is None, a tuple or a number."""
    for value in (X, None, (X, Y), 3):
        assert bare_or_inputs((value,), {}) is value


@pytest.mark.parametrize(("args", "kwargs"), [((X, Y), {}), ((X,), {"mask": MASK}), ((), {})])
def test_v10_several_or_keyword_arguments_are_given_as_inputs(args, kwargs):
    """None at all counts as several: there is no bare value to give."""
    given = bare_or_inputs(args, kwargs)

    assert isinstance(given, Inputs)
    assert given.args is args
    assert given.kwargs is kwargs


def test_p2_inputs_are_complete_replacements():
    """They may add, move and drop arguments."""
    call = call_with(X, mask=MASK)

    assert new_inputs(call, Inputs((X, Y)), "hook") == ((X, Y), {})
    assert new_inputs(call, Inputs((), {"input": X}), "hook") == ((), {"input": X})


def test_p2_an_exact_tuple_is_the_positional_arguments_and_keywords_stay():
    """The documented `return (x_noisy,)`."""
    call = call_with(X, mask=MASK)

    args, kwargs = new_inputs(call, (Y,), "hook")

    assert args == (Y,)
    assert args[0] is Y
    assert kwargs is call.kwargs


@pytest.mark.parametrize("value", [Y, [X, Y], Pair(X, Y), torch.Size([2]), {"a": X}, 0, False])
def test_p2_anything_else_is_the_only_positional_argument(value):
    """Tuple subclasses included: a named tuple is a value of the model's."""
    args, _ = new_inputs(call_with(X), value, "hook")

    assert len(args) == 1
    assert args[0] is value


@pytest.mark.parametrize(
    ("args", "kwargs", "value", "counts"),
    [
        ((X,), {}, (X, Y), "2 positional argument(s) in place of 1"),
        ((X,), {}, (), "0 positional argument(s) in place of 1"),
        ((X, Y), {}, X, "1 positional argument(s) in place of 2"),
        ((X, Y), {}, (X,), "1 positional argument(s) in place of 2"),
        ((X, Y), {}, Pair(X, Y), "1 positional argument(s) in place of 2"),
        ((), {"mask": MASK}, X, "1 positional argument(s) in place of 0"),
    ],
)
def test_p2_another_number_of_positional_arguments_is_refused(args, kwargs, value, counts):
    """The error names hook and module and shows how to change the number."""
    with pytest.raises(HookTypeError) as caught:
        new_inputs(call_with(*args, **kwargs), value, "forward pre-hook noise")

    text = str(caught.value)
    assert counts in text
    assert "forward pre-hook noise of encoder.0 (Linear), call 2" in text
    assert "Inputs((first, second), {'name': value})" in text


# Outputs.


@pytest.mark.parametrize("value", [Y, (X, Y), {"a": X}, [], object()])
def test_an_output_may_be_replaced_by_any_structure(value):
    """It is handed on as it is."""
    assert new_output(call_with(X, out=X), value, "hook") is value


@pytest.mark.parametrize("value", [False, True, 0, 1.5, 2j, "text", b"bytes"])
def test_a_plain_value_in_place_of_a_tensor_is_refused(value):
    """That is what a hook which was meant to observe returns by accident."""
    with pytest.raises(HookTypeError, match="only observes must return None") as caught:
        new_output(call_with(X, out=X), value, "forward hook log.append")

    assert "forward hook log.append of encoder.0 (Linear), call 2" in str(caught.value)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("value", [False, 0, "text"])
def test_a_plain_value_may_replace_an_output_that_is_no_tensor(value):
    """A module may well return a number or a text."""
    assert new_output(call_with(X, out="before"), value, "hook") is value


# Gradients.


def gradients_for(structure, value):
    """What flows on when a hook that got the gradients in `structure` gives `value`."""
    tree = Tree.of(structure)
    known = dict(enumerate(tree.tensors))
    return new_gradients(call_with(X), Outline.of(tree), value, "backward hook scale", known)


def same(found, expected):
    """Whether two lists hold the same objects."""
    return len(found) == len(expected) and all(a is b for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("structure", "value", "expected"),
    [
        pytest.param((X,), (Y,), [Y], id="tuple"),
        pytest.param((X,), Y, [Y], id="bare tensor"),
        pytest.param({"a": X}, Y, [Y], id="bare tensor for one in a dict"),
        pytest.param((X, X), [Y, X], [Y, X], id="list for a tuple"),
        pytest.param([X, X], (Y, X), [Y, X], id="tuple for a list"),
        pytest.param((X, X), (None, Y), [None, Y], id="None drops one"),
        pytest.param((X, 3, X), (X, None, Y), [X, Y], id="None where there was no tensor"),
        pytest.param((X, [X, {"k": X}]), (X, [Y, {"k": X}]), [X, Y, X], id="nested"),
        pytest.param(Pair(X, X), Pair(Y, X), [Y, X], id="named tuple"),
        pytest.param(Pair(X, X), (Y, X), [Y, X], id="tuple for a named tuple"),
        pytest.param(OrderedDict(a=X, b=X), {"b": X, "a": Y}, [Y, X], id="dict by name"),
        pytest.param(Answer(X), Answer(Y, None), [Y], id="dataclass"),
    ],
)
def test_p5_a_hook_gives_back_the_structure_that_it_got(structure, value, expected):
    """Each gradient finds its slot; kinds of sequences and of dicts are kin."""
    assert same(gradients_for(structure, value), expected)


@pytest.mark.parametrize(
    ("structure", "value"),
    [
        pytest.param((X, X), Y, id="bare tensor for two"),
        pytest.param((X, X), (Y,), id="too few"),
        pytest.param((X,), (Y, Y), id="too many"),
        pytest.param((X,), (1.0,), id="a number"),
        pytest.param({"a": X, "b": X}, {"a": Y}, id="a name missing"),
        pytest.param({"a": X, "b": X}, (Y, Y), id="tuple for a dict"),
        pytest.param((X, [X]), (Y, Y), id="flat for nested"),
        pytest.param((X, 3), (Y, 3), id="something where there was no tensor"),
        pytest.param(Answer(X), {"logits": Y, "label": None}, id="dict for a dataclass"),
        pytest.param((), Y, id="no gradient at all"),
    ],
)
def test_p5_another_structure_is_refused(structure, value):
    """The error names hook and module, shows both, and says what to do."""
    with pytest.raises(HookTypeError, match="gradients of another structure") as caught:
        gradients_for(structure, value)

    assert "backward hook scale of encoder.0 (Linear), call 2" in str(caught.value)
    assert "give the structure that the hook got" in str(caught.value)


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (Y[:1], "float32[1, 3]"),
        (Y.double(), "float64[2, 3]"),
        (Y.to("meta"), "on meta"),
    ],
)
def test_p5_a_gradient_of_another_shape_dtype_or_device_is_refused(value, named):
    """Rather than summed, cast, or an error from inside autograd."""
    with pytest.raises(HookValueError) as caught:
        gradients_for((X, X), (Y, value))

    assert named in str(caught.value)
    assert "backward hook scale of encoder.0 (Linear), call 2" in str(caught.value)


def test_p5_a_gradient_may_stand_where_there_was_none():
    """Nothing is known of its shape there."""
    outline = Outline.of(Tree.of((X, X)))

    found = new_gradients(call_with(X), outline, (X, MASK), "hook", {0: Y, 1: None})

    assert same(found, [X, MASK])


def test_grad_input_is_a_tuple_with_the_keywords_beside():
    """So hooks written for torch, which know no keywords, work on it."""
    grad_input = GradInput.of((X, None), {"mask": Y})

    assert isinstance(grad_input, tuple)
    first, second = grad_input
    assert isinstance(first, Tensor)
    assert second is None
    assert grad_input.kwargs == {"mask": Y}
