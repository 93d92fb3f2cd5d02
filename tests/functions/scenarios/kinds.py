"""Kinds of tensors, and transforms of `torch.func`."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tests.functions.scenario import Case, leaf, scenario


class Named(torch.Tensor):
    """A plain subclass of a tensor."""


class Counting(torch.Tensor):
    """A subclass with a protocol of its own."""

    seen = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        Counting.seen += 1
        return super().__torch_function__(func, types, args, kwargs or {})


@scenario("subclass", "mul add sum")
def plain() -> Case:
    x = torch.randn(3).as_subclass(Named).requires_grad_()

    def forward():
        y = x * 2 + 1
        assert type(y) is Named
        return y.sum()

    return Case(forward, [x])


@scenario("subclass", "mul exp sum")
def with_a_protocol() -> Case:
    x = torch.randn(3).as_subclass(Counting).requires_grad_()
    return Case(lambda: (x * 2).exp().sum(), [x])


@scenario("subclass", "linear relu")
def parameters_and_buffers() -> Case:
    x = leaf(2, 3)
    w, b = nn.Parameter(torch.randn(2, 3)), nn.Buffer(torch.ones(2))
    return Case(lambda: F.relu(F.linear(x, w, b)), [x, w])


@scenario("nested", "mul linear relu _nested_get_values")
def jagged() -> Case:
    parts = [torch.randn(2, 3), torch.randn(4, 3)]
    x = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
    w = leaf(2, 3)
    return Case(lambda: F.relu(F.linear(x * 2, w)).values(), [x, w])


@scenario("sparse", "_sparse_mm mul")
def matrix_times_dense() -> Case:
    a = torch.eye(3).to_sparse().requires_grad_()
    x = leaf(3, 2)
    return Case(lambda: torch.sparse.mm(a, x) * 2, [a, x])


@scenario("sparse", "embedding mul")
def gradient() -> Case:
    w = leaf(5, 3)
    index = torch.tensor([1, 1, 4])
    return Case(lambda: F.embedding(index, w, sparse=True) * 2, [w])


@scenario("sparse", "to_sparse mul to_dense")
def back_and_forth() -> Case:
    x = leaf(3, 3)
    return Case(lambda: torch.Tensor.to_dense(x.to_sparse() * 2), [x])


@scenario("complex", "mul abs angle view_as_real complex")
def numbers() -> Case:
    z, x = leaf(3, dtype=torch.complex64), leaf(3)

    def forward():
        y = z * (1 + 2j)
        return y.abs(), y.angle(), torch.view_as_real(y), torch.complex(x, x)

    return Case(forward, [z, x])


@scenario("complex", "conj matmul imag")
def matrices() -> Case:
    z = leaf(3, 3, dtype=torch.complex64)
    return Case(lambda: (z @ z.conj()).imag, [z])


# ------------------------------------------------------------------------------- torch.func


@scenario("functorch", "sin mul")
def vmap() -> Case:
    x = leaf(3, 2)
    return Case(lambda: torch.func.vmap(lambda v: v.sin() * 2)(x), [x], referenced=False)


@scenario("functorch", "pow sum mul", inner="sum pow", backward="mul mul mul pow")
def grad() -> Case:
    x = leaf(3)
    return Case(lambda: torch.func.grad(lambda v: (v**3).sum())(x) * 2, [x], referenced=False)


@scenario("functorch", "sin mul", inner="sin", backward="mul mul cos sin")
def vjp() -> Case:
    x, one = leaf(3), torch.ones(3)

    def forward():
        out, pull = torch.func.vjp(torch.sin, x)
        return out * pull(one)[0]

    return Case(forward, [x], referenced=False)


@scenario("functorch", "linear")
def call_of_a_module() -> Case:
    layer, x = nn.Linear(3, 2), leaf(2, 3)
    parameters = dict(layer.named_parameters())
    leaves = [x, *parameters.values()]
    return Case(lambda: torch.func.functional_call(layer, parameters, (x,)), leaves)


@scenario("functorch", "_make_dual sin _unpack_dual", backward="alias mul cos alias sin alias")
def jvp() -> Case:
    x, one = leaf(3), torch.ones(3)
    return Case(lambda: torch.func.jvp(torch.sin, (x,), (one,)), [x], referenced=False)
