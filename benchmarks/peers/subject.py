"""A model that tools look into, and what they must find there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.models import GPT, ResNet

Tensors = dict[str, Tensor]
Keep = Callable[[str, Tensor], None]


@dataclass(frozen=True)
class Subject:
    """A model and what it is run on.

    Attributes:
        model: the model.
        x: its input.
        leaves: the modules without children, by path, as they run.
    """

    model: nn.Module
    x: Tensor
    leaves: dict[str, nn.Module]

    def forward(self) -> Tensor:
        """Run the model."""
        return self.model(self.x)

    def backward(self) -> None:
        """Run the model, and the backward of a loss."""
        loss_of(self.forward()).backward()


def loss_of(output: Tensor) -> Tensor:
    """What is differentiated."""
    return output.square().mean()


def subject(model: nn.Module, x: Tensor) -> Subject:
    """The model, with its leaves in the order in which they run."""
    inside = {path: module for path, module in model.named_modules() if not list(module.children())}
    seen: dict[str, nn.Module] = {}
    with on_outputs(inside, lambda path, _: seen.setdefault(path, inside[path])):
        model(x)
    return Subject(model, x, seen)


def on_outputs(leaves: dict[str, nn.Module], keep: Keep) -> ExitStack:
    """Torch's own forward hooks, which give each output to `keep`, until the stack is closed."""
    stack = ExitStack()
    for path, module in leaves.items():

        def hook(_: nn.Module, __: object, out: Tensor, path: str = path) -> None:
            keep(path, out)

        stack.callback(module.register_forward_hook(hook).remove)
    return stack


def gpt() -> Subject:
    """A small GPT, with four pieces of text."""
    torch.manual_seed(0)
    return subject(GPT(), torch.randint(0, 64, (4, 64)))


def resnet() -> Subject:
    """A small ResNet as it is when features are taken out of it, with eight images."""
    torch.manual_seed(0)
    return subject(ResNet().eval(), torch.randn(8, 3, 32, 32))


def linears(count: int = 200) -> Subject:
    """So many tiny modules in a row."""
    torch.manual_seed(0)
    return subject(nn.Sequential(*[nn.Linear(4, 4) for _ in range(count)]), torch.randn(1, 1, 4))


def overwriting() -> Subject:
    """A layer whose output an in-place operation overwrites: a capture must have copied it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4))
    return subject(model, torch.randn(1, 8, 4))


def wrong(found: Tensors, wanted: Tensors) -> list[str]:
    """The paths under which something is missing or not the same, bit for bit."""
    return [
        path
        for path, value in wanted.items()
        if path not in found or not torch.equal(found[path], value)
    ]
