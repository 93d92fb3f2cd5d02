"""Short texts for values of any kind."""

import warnings
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers.modeling_outputs import BaseModelOutput

from hookline.torch_base.tree import Tree, describe
from tests.torch_base.kinds import Pair, Plain, Row

T1, T2 = torch.ones(2, 3), torch.zeros(4, dtype=torch.int64)


class Box:
    """A class that nobody knows."""


class Named(dict):
    pass


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.ones(3, 10), "float32[3, 10]"),
        (torch.tensor(1), "int64[]"),
        (nn.Parameter(T1), "float32[2, 3]"),
        ((T1, None, 5), "(float32[2, 3], None, 5)"),
        ((T1,), "(float32[2, 3],)"),
        ((), "()"),
        ([T1, "a"], "[float32[2, 3], 'a']"),
        ({"a": T1, 1: 2.5}, "{'a': float32[2, 3], 1: 2.5}"),
        (Pair(T1, b"x"), "Pair(first=float32[2, 3], second=b'x')"),
        (Plain(T1, True), "Plain(logits=float32[2, 3], extra=True)"),
        (Named(a=T1), "Named('a': float32[2, 3])"),
        (Row([1]), "Row([1])"),
        (torch.return_types.max((T1, T2)), "max(values=float32[2, 3], indices=int64[4])"),
        (BaseModelOutput(T1), "BaseModelOutput(last_hidden_state=float32[2, 3])"),
        (torch.Size([2, 3]), "torch.Size([2, 3])"),
        (torch.float16, "torch.float16"),
        (Box(), "<Box>"),
        (nn.Linear(2, 2), "<Linear>"),
        (10**5000, "<int>"),
        ([[[[[T1]]]]], "[[[[...]]]]"),
        (list(range(9)), "[0, 1, 2, 3, 4, 5, 6, 7, ...]"),
        (list(range(8)), "[0, 1, 2, 3, 4, 5, 6, 7]"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_descriptions(value, text):
    """Types and shapes for tensors, structures as Python writes them, type names for the rest."""
    assert describe(value) == text
    assert repr(Tree.of(value)) == f"Tree({text})"


def test_long_texts_are_cut():
    """A description has at most the length asked for, and shows that it was cut."""
    assert len(describe("a" * 10**6)) < 80
    assert describe({"a" * 300: T1}, limit=50) == "{'" + "a" * 45 + "..."
    assert len(describe([[["word"] * 50] * 50] * 50)) == 200


def nested(layout):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nested tensors say that they are a prototype
        return torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=layout)


class Refusing(Tensor):
    """A tensor that lets nobody look at it."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise RuntimeError


class Mute:
    """An object that answers no question."""

    def __repr__(self):
        raise RuntimeError

    @property
    def __class__(self):
        raise RuntimeError


@dataclass
class Broken:
    """A dataclass with a field that cannot be read."""

    logits: object

    def __getattribute__(self, name):
        if name == "logits":
            raise RuntimeError
        return super().__getattribute__(name)


def fake():
    with FakeTensorMode():
        return torch.ones(2, 3)


ODD = {
    "nested, strided": (nested(torch.strided), "float32[?]"),
    "meta": (torch.ones(2, 3, device="meta"), "float32[2, 3]"),
    "sparse": (T1.to_sparse(), "float32[2, 3]"),
    "fake": (fake(), "float32[2, 3]"),
    "uninitialized": (nn.UninitializedParameter(), "float32[?]"),
    "subclass that refuses": (T1.as_subclass(Refusing), "Refusing[?]"),
    "object that refuses": (Mute(), "<Mute>"),
    "dataclass that refuses": (Broken(T1), "<Broken>"),
    "float8": (torch.ones(2, 3).to(torch.float8_e4m3fn), "float8_e4m3fn[2, 3]"),
}


@pytest.mark.parametrize(("value", "text"), ODD.values(), ids=ODD.keys())
def test_odd_values_are_described(value, text):
    """Nothing that may be in an output makes `describe` fail, alone or inside a structure."""
    assert describe(value) == text
    assert describe((value, 1)) == f"({text}, 1)"


def test_a_jagged_tensor_is_described():
    """A jagged tensor shows its ragged dimension by name."""
    text = describe(nested(torch.jagged))
    assert text.startswith("float32[2, j")
    assert text.endswith(", 3]")


def test_tensors_inside_transforms_are_described():
    """Inside `vmap` and `grad` a tensor is wrapped, and described by what the function sees."""
    shapes = []
    torch.func.vmap(lambda row: shapes.append(describe([row])) or row)(T1)
    torch.func.grad(lambda row: shapes.append(describe([row])) or row.sum())(T1)
    assert shapes == ["[float32[3]]", "[float32[2, 3]]"]


def test_a_description_reads_no_data():
    """No operation runs on a tensor that is described."""
    ran = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            ran.append(func)
            return func(*args, **(kwargs or {}))

    with Watch():
        describe((T1, [T2], {T1: T2}, Pair(T1, Plain(T2)), BaseModelOutput(T1), Box()))
    assert ran == []
