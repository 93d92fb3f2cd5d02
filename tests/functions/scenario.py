"""What a scenario is: some function calls, and which events they must have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

SCENARIOS: list[Scenario] = []


@dataclass
class Case:
    """What a scenario runs.

    Attributes:
        forward: what runs in the scope; gives the outputs.
        leaves: the tensors whose gradients are compared.
        backward: what runs after it with the outputs and their gradients.
        referenced: whether plain autograd can give the gradient of each edge for comparison.
        cyclic: whether what it uses is freed by the garbage collector only, also without hooks.
    """

    forward: Callable[[], Any]
    leaves: Sequence[Tensor]
    backward: Callable[[list[Tensor], list[Tensor]], object] = torch.autograd.backward
    referenced: bool = True
    cyclic: bool = False


@dataclass
class Scenario:
    """A case, and which functions it calls.

    Attributes:
        group: the kind of scenario.
        name: its name.
        make: makes the case anew.
        forward: the names of the functions that have forward events, in order.
        backward: those that have backward events, in order.
        inner: those that have backward events in the forward already.
        repeated: those that a checkpoint calls again in the backward.
    """

    group: str
    name: str
    make: Callable[[], Case]
    forward: list[str]
    backward: list[str]
    inner: list[str]
    repeated: list[str]

    def __str__(self) -> str:
        return f"{self.group}-{self.name}"


def scenario(
    group: str, names: str, *, backward: str | None = None, inner: str = "", repeated: str = ""
) -> Callable[[Any], Any]:
    """Declare a scenario.

    Args:
        group: the kind of scenario.
        names: its functions in the order of their calls; in brackets those without a gradient.
        backward: its functions in the backward; by default those with a gradient, reversed.
        inner: the functions in a backward that is run in the forward.
        repeated: the functions that a checkpoint calls again in the backward.
    """
    words = names.split()
    forward = [word.strip("()") for word in words]
    reverse = [word for word in reversed(words) if not word.startswith("(")]
    expected = reverse if backward is None else backward.split()

    def declare(make: Callable[[], Case]) -> Callable[[], Case]:
        made = Scenario(
            group, make.__name__, make, forward, expected, inner.split(), repeated.split()
        )
        SCENARIOS.append(made)
        return make

    return declare


def leaf(*shape: int, **options: Any) -> Tensor:
    """A random leaf that needs a gradient."""
    return torch.randn(*shape, **options).requires_grad_()


def tensors_of(out: Any) -> list[Tensor]:
    """The tensors of an output."""
    return [out] if isinstance(out, Tensor) else list(out)


def differentiable(out: Any) -> tuple[list[Tensor], list[Tensor]]:
    """The outputs that need a gradient, and a random gradient for each."""
    outputs = [t for t in tensors_of(out) if t.requires_grad]
    generator = torch.Generator().manual_seed(1)
    return outputs, [_like(t, generator) for t in outputs]


def _like(tensor: Tensor, generator: torch.Generator) -> Tensor:
    if tensor.is_nested:
        return torch.ones_like(tensor)
    plain = torch.randn(tensor.shape, dtype=torch.float64, generator=generator)
    return plain.to(tensor.dtype)


def same(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether two tensors are equal in each bit, or both None."""
    if one is None or other is None:
        return one is other
    if one.is_nested:
        return same(one.values(), other.values())
    if one.is_sparse:
        one, other = one.to_dense(), other.to_dense()
    return one.dtype == other.dtype and torch.equal(one, other)
