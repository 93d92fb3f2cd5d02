"""What an item of the matrix is: a model, and something that is done with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree


@dataclass
class Case:
    """A model, and something that is done with it.

    Attributes:
        model: the model that hooks are put on.
        step: what is done; gives what is compared besides gradients and buffers.
        leaves: other tensors whose gradients are compared.
    """

    model: nn.Module
    step: Callable[[], Any]
    leaves: Iterable[Tensor] = ()


def results(make: Callable[[], Case], kind: Any = None) -> tuple[dict[str, Any], int]:
    """All that a case gives, gradients, buffers and the state of the random numbers included.

    The second is how often the hooks of the kind were called.
    """
    torch.manual_seed(0)
    case = make()
    torch.manual_seed(1)
    with nullcontext(int) if kind is None else kind(case.model) as count:
        out = case.step()
        times = count()
    found: dict[str, Any] = {f"out {n}": value for n, value in enumerate(flat(out))}
    found |= {f"leaf {n}": leaf.grad for n, leaf in enumerate(case.leaves)}
    found |= {f"grad {name}": value.grad for name, value in case.model.named_parameters()}
    found |= {f"weight {name}": value for name, value in case.model.named_parameters()}
    found |= {f"buffer {name}": value for name, value in case.model.named_buffers()}
    found["random numbers"] = torch.get_rng_state()
    return found, times


def flat(value: Any) -> list[Any]:
    """The leaves of a structure."""
    return _pytree.tree_leaves(value)


def different(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """The names of what is not equal in each bit."""
    names = [name for name in one if name not in other or not same(one[name], other[name])]
    return names + [name for name in other if name not in one]


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal: tensors in kind, type and each bit."""
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return one is other or one == other
    if type(one) is not type(other) or one.dtype != other.dtype or one.layout != other.layout:
        return False
    if one.is_meta or other.is_meta:
        return one.shape == other.shape and one.is_meta and other.is_meta
    return torch.equal(bits(one), bits(other))


def bits(tensor: Tensor) -> Tensor:
    """A plain tensor of all numbers that a tensor of any kind holds."""
    with torch.no_grad():
        tensor = getattr(tensor, "held", tensor).detach()
        if tensor.is_nested:
            tensor = torch.cat([part.flatten() for part in tensor.unbind()])
        if tensor.is_quantized:
            tensor = tensor.dequantize()
        if tensor.layout is not torch.strided:
            tensor = tensor.to_dense()
        return tensor.as_subclass(Tensor).nan_to_num(nan=12345.0)


def trained(model: nn.Module, *inputs: Any, **options: Any) -> Case:
    """One step of training: a forward, a sum of squares, a backward."""

    def step() -> Any:
        loss = squares(model(*inputs, **options))
        loss.backward()
        return loss

    return Case(model, step, [x for x in inputs if isinstance(x, Tensor) and x.requires_grad])


def squares(out: Any) -> Tensor:
    """The sum of the squares of all tensors that need a gradient."""
    wanted = [t for t in flat(out) if isinstance(t, Tensor) and t.requires_grad]
    return torch.stack([t.pow(2).sum() for t in wanted]).sum()


def rows(*, grad: bool = True, width: int = 4) -> Tensor:
    """A small batch of fixed numbers."""
    return torch.linspace(-1, 1, 3 * width).reshape(3, width).requires_grad_(grad)


class Block(nn.Module):
    """A linear layer, in-place ReLU, dropout and a residual connection."""

    def __init__(self, width: int = 4, dropout: float = 0.3) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.act = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.act(self.linear(x))) + x


def net(dropout: float = 0.3) -> nn.Sequential:
    """A small model with randomness, an in-place operation and nested modules."""
    return nn.Sequential(nn.Linear(4, 4), Block(dropout=dropout), nn.Tanh(), nn.Linear(4, 2))


def smooth() -> nn.Sequential:
    """A small model without randomness that can be differentiated many times."""
    return nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Tanh(), nn.Linear(4, 2)))
