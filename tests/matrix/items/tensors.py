"""Tensors of other kinds: nested, sparse, subclasses, on the meta device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree

from tests.matrix.case import Case, net, rows, smooth, squares, trained


class Logged(Tensor):
    """A subclass that has a say in all functions, and stays itself."""

    calls = 0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Logged.calls += 1
        return super().__torch_function__(func, types, args, kwargs or {})


class Unit(Tensor):
    """A subclass with an attribute that goes from operand to result, as units of measure do."""

    unit: str

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = super().__torch_function__(func, types, args, kwargs or {})
        units = [t.unit for t in _pytree.tree_leaves(args) if hasattr(t, "unit")]
        for each in _pytree.tree_leaves(out):
            if isinstance(each, Unit) and units:
                each.unit = units[0]
        return out


class Wrapper(Tensor):
    """A wrapper with operations of its own: it holds a tensor and works on that."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Self:
        options = {"dtype": held.dtype, "device": held.device, "requires_grad": held.requires_grad}
        return Tensor._make_wrapper_subclass(cls, held.size(), held.stride(), **options)

    def __init__(self, held: Tensor) -> None:
        self.held = held

    def __repr__(self) -> str:
        return f"Wrapper({self.held})"

    def __tensor_flatten__(self) -> Any:
        return ["held"], None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = _pytree.tree_map_only(Wrapper, lambda t: t.held, (args, kwargs or {}))
        return _pytree.tree_map_only(Tensor, Wrapper, func(*args, **kwargs))


class Function(nn.Module):
    """A module around a function, so that there is a module to watch."""

    def __init__(self, function: Callable[..., Any], *weights: Tensor) -> None:
        super().__init__()
        self.function = function
        self.weights = nn.ParameterList(nn.Parameter(weight) for weight in weights)

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs, *self.weights)


def stepping(model: nn.Module, make: Callable[[], Any], *, train: bool = True) -> Case:
    """A case whose input is made anew; with a backward, if asked for."""

    def step() -> Any:
        out = model(make())
        if train:
            squares(values(out)).backward()
        return out

    return Case(model, step)


def values(out: Any) -> Any:
    """What a loss is made of: the parts of nested tensors, sparse ones as dense."""
    if isinstance(out, Tensor) and out.is_nested:
        return list(out.unbind())
    if isinstance(out, Tensor) and out.layout is not torch.strided:
        return out.to_dense()
    return out


def nested(layout: torch.layout) -> Tensor:
    """Two sequences of different length."""
    parts = [torch.linspace(-1, 1, 8).view(2, 4), torch.linspace(0, 2, 12).view(3, 4)]
    return torch.nested.nested_tensor(parts, layout=layout, requires_grad=True)


def sparse() -> Tensor:
    """A matrix with few values."""
    return torch.tensor([[0.0, 2.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 3.0]])


def encoder() -> Case:
    """An encoder that takes its fast path on nested tensors."""
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    return Case(model, lambda: model(rows(grad=False).view(1, 3, 4)))


def embedding() -> Case:
    """Gradients of an embedding that are sparse, and an optimizer for them."""
    model = nn.Sequential(nn.Embedding(5, 4, sparse=True), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> Any:
        loss = squares(model(torch.tensor([[1, 1, 4]])))
        loss.backward()
        optimizer.step()
        return loss

    return Case(model, step)


def attention(x: Tensor) -> Tensor:
    """Attention over sequences of different length."""
    heads = x.unflatten(-1, [2, 2]).transpose(1, 2)
    return F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(-2)


def on_meta() -> Case:
    with torch.device("meta"):
        model, x = net(), rows().detach().to("meta").requires_grad_()
    return trained(model, x)


def materialised() -> Case:
    """Built on the meta device, then given memory and values, as large models are loaded."""
    with torch.device("meta"):
        model = smooth()

    def step() -> Any:
        model(torch.empty(3, 4, device="meta"))
        model.to_empty(device="cpu")
        model.load_state_dict(smooth().state_dict())
        loss = squares(model(rows()))
        loss.backward()
        return loss

    return Case(model, step)


def assigned() -> Case:
    """Weights that are exchanged for others by `load_state_dict(assign=True)`."""
    model = smooth()

    def step() -> Any:
        model.load_state_dict(smooth().state_dict(), assign=True)
        loss = squares(model(rows()))
        loss.backward()
        return loss

    return Case(model, step)


def subclass(cls: type[Tensor]) -> Tensor:
    return rows(grad=False).as_subclass(cls).requires_grad_()


def unit() -> Tensor:
    x = rows(grad=False).as_subclass(Unit)
    x.unit = "m"
    return x


def doubled(x: Any) -> Any:
    return x * 2


ITEMS = {
    "nested, jagged": lambda: stepping(smooth(), lambda: nested(torch.jagged)),
    "nested, strided": lambda: stepping(
        nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), lambda: nested(torch.strided)
    ),
    "nested, attention": lambda: stepping(
        nn.Sequential(nn.Linear(4, 4), Function(attention), nn.Linear(4, 2)),
        lambda: nested(torch.jagged),
    ),
    "encoder": encoder,
    "sparse coo": lambda: stepping(
        nn.Sequential(Function(torch.sparse.mm, torch.ones(3, 4)), nn.Linear(4, 2)),
        lambda: sparse().to_sparse(),
    ),
    "sparse coo, gradient": lambda: stepping(
        nn.Sequential(Function(doubled), Function(torch.Tensor.to_dense)),
        lambda: sparse().to_sparse().requires_grad_(),
    ),
    "sparse csr": lambda: stepping(
        nn.Sequential(Function(torch.matmul, torch.ones(3, 4)), nn.Linear(4, 2)),
        lambda: sparse().to_sparse_csr(),
    ),
    "sparse output": lambda: stepping(
        nn.Sequential(nn.Linear(4, 3), Function(Tensor.to_sparse)), rows
    ),
    "sparse gradient": embedding,
    "__torch_function__": lambda: stepping(net(), lambda: subclass(Logged)),
    "__torch_function__, attribute": lambda: stepping(smooth(), unit),
    "__torch_dispatch__": lambda: stepping(
        nn.Sequential(Function(doubled), Function(torch.tanh)), lambda: Wrapper(rows())
    ),
    "__torch_dispatch__, weights": lambda: stepping(
        nn.Sequential(Function(torch.matmul, Wrapper(torch.ones(4, 2))), nn.Tanh()), rows
    ),
    "subclass of parameter": lambda: stepping(
        nn.Sequential(Function(F.linear, torch.ones(2, 4).as_subclass(Logged)), nn.Tanh()), rows
    ),
    "meta": on_meta,
    "meta, materialised": materialised,
    "weights assigned": assigned,
    "complex": lambda: stepping(
        nn.Sequential(nn.Linear(4, 2, dtype=torch.complex64), Function(torch.view_as_real)),
        lambda: torch.complex(rows(), rows()),
    ),
    "integers": lambda: stepping(
        nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 2)), lambda: torch.arange(6).view(2, 3)
    ),
    "float64": lambda: trained(net().double(), rows().detach().double().requires_grad_()),
    "empty batch": lambda: trained(net(), torch.ones(0, 4, requires_grad=True)),
    "channels last": lambda: trained(
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(inplace=True)).to(
            memory_format=torch.channels_last
        ),
        torch.linspace(0, 1, 32).view(2, 1, 4, 4),
    ),
}
