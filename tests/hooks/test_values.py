"""A tensor's values in a few words."""

import math

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from hookline.hooks.values import value_text


def numbers(text):
    """The statistics in a text by name."""
    words = text.split()
    return {key: float(value) for key, _, value in (w.partition("=") for w in words) if value}


def test_statistics():
    """Smallest, mean and largest value, and the standard deviation of all of them."""
    torch.manual_seed(0)
    x = torch.randn(3, 5) * 1e3
    text = value_text(x)
    values = x.flatten().tolist()
    mean = sum(values) / len(values)

    assert text.startswith("float32[3, 5] cpu min=")
    assert numbers(text) == pytest.approx(
        {
            "min": min(values),
            "mean": mean,
            "max": max(values),
            "std": math.sqrt(sum((v - mean) ** 2 for v in values) / len(values)),
        },
        rel=1e-3,  # four digits are shown
    )


def test_nan_and_inf_are_counted_and_left_out():
    """NaN and both infinities are counted; the statistics are of the rest."""
    x = torch.tensor([1.0, math.nan, math.inf, 3.0, -math.inf, math.nan])

    assert value_text(x) == "float32[6] cpu min=1 mean=2 max=3 std=1 nan=2 inf=2"
    assert value_text(torch.full((2,), math.nan)) == "float32[2] cpu nan=2"


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (None, "None"),
        (torch.empty(0, 3), "float32[0, 3] cpu"),
        (torch.tensor(2.5), "float32[] cpu min=2.5 mean=2.5 max=2.5 std=0"),
        (torch.tensor([1, 2, 3]), "int64[3] cpu min=1 mean=2 max=3 std=0.8165"),
        (torch.tensor([True, False]), "bool[2] cpu min=0 mean=0.5 max=1 std=0.5"),
        (torch.tensor([3 + 4j]), "complex64[1] cpu min=5 mean=5 max=5 std=0"),
        (torch.full((9,), 65504.0).half(), "float16[9] cpu min=6.55e+04 mean=6.55e+04 "),
        (torch.ones(2, dtype=torch.bfloat16), "bfloat16[2] cpu min=1 mean=1 max=1 std=0"),
        (nn.Parameter(torch.ones(2)), "float32[2] cpu min=1 mean=1 max=1 std=0"),
        (torch.eye(3).to_sparse(), "float32[3, 3] cpu min=1 mean=1 max=1 std=0"),
        (torch.ones(2, 2).to_mkldnn(), "float32[2, 2] cpu min=1 mean=1 max=1 std=0"),
    ],
    ids=[
        *("None", "empty", "scalar", "integers", "truth values", "complex", "half", "bfloat16"),
        *("parameter", "sparse", "mkldnn"),
    ],
)
def test_kinds_of_tensors(tensor, text):
    """Every kind of tensor has its shape, dtype and device, and statistics where it has values."""
    assert value_text(tensor).startswith(text)


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (torch.ones(2, device="meta"), "float32[2] meta"),
        (FakeTensorMode().from_tensor(torch.ones(2)), "float32[2] cpu"),
    ],
    ids=["meta", "fake"],
)
def test_unreadable_values(tensor, text):
    """Where values cannot be read, shape, dtype and device stand alone."""
    assert value_text(tensor) == text


def test_inside_a_transform():
    """Inside `vmap` a sample has no values of its own, and looking at it changes nothing."""
    texts = []

    def double(x):
        texts.append(value_text(x))
        return x * 2

    x = torch.rand(3, 2)
    assert torch.equal(torch.func.vmap(double)(x), x * 2)
    assert texts == ["float32[2] cpu"]


def test_inside_a_trace():
    """A look at a tensor is no part of what `torch.jit.trace` or `make_fx` records."""

    def looked(x):
        value_text(x)
        return x * 2

    x = torch.ones(2)
    traced = torch.jit.trace(looked, x)
    kinds = [node.kind() for node in traced.graph.nodes()]
    assert [kind for kind in kinds if kind.startswith("aten")] == ["aten::mul"]

    made = torch.fx.experimental.proxy_tensor.make_fx(looked)(x)
    assert [node.target for node in made.graph.nodes if node.op == "call_function"] == [
        torch.ops.aten.mul.Tensor
    ]


def test_r2_nothing_is_changed():
    """It draws no random numbers, and leaves the tensor and its graph as they are."""
    x = torch.ones(3, requires_grad=True)
    y = x * 2
    state, version, node = torch.get_rng_state(), y._version, y.grad_fn
    value_text(y)

    assert torch.equal(torch.get_rng_state(), state)
    assert (y._version, y.grad_fn) == (version, node)
    assert torch.is_grad_enabled()
