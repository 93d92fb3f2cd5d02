"""Three ways to lose a training run to NaN, and what hookline says of each.

    python examples/nan_hunt.py

The network and the data are those of digits_cnn.py. Three accidents happen to it, one at a time: a
learning rate that is far too high, a normalisation that divides by zero in the backward only, and
a damaged weight. `NonFiniteHook("raise")` stops the training in the call where the first value
went wrong: the error names the layer, the tensor, the position, and whether the layer *made* the
bad value or has a bad parameter.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from digits_cnn import Net, batches, load_data
from torch import Tensor, nn

import hookline
from hookline.module_hooks import NonFiniteHook


class Norm(nn.Module):
    """Divides each image by its length, from the second row of pixels on."""

    def forward(self, x: Tensor) -> Tensor:
        """Give images of length one, but for those that are empty there."""
        length = (x[:, :, 1:] ** 2).sum((1, 2, 3), keepdim=True).sqrt()
        return x / length.clamp(min=1e-6)


def wild_rate() -> tuple[nn.Module, float]:
    """A learning rate that makes the weights overflow."""
    return Net(), 1e25


def zero_in_the_backward() -> tuple[nn.Module, float]:
    """Images that the first layer leaves empty: √0 is fine, its slope is not."""
    first = nn.Conv2d(1, 1, 1)
    nn.init.zeros_(first.weight)
    nn.init.zeros_(first.bias)
    return nn.Sequential(first, Norm(), Net()), 0.1


def damaged_weight() -> tuple[nn.Module, float]:
    """One weight of many is NaN, as after a damaged checkpoint."""
    net = Net()
    with torch.no_grad():
        net.features.block2.conv.weight[3, 1, 0, 2] = float("nan")
    return net, 0.1


def train(model: nn.Module, rate: float, images: Tensor, labels: Tensor) -> None:
    """Train for one epoch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for x, y in batches(images, labels):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def hunt(accident: Callable[[], tuple[nn.Module, float]], images: Tensor, labels: Tensor) -> None:
    """Train under a guard, and tell what it found."""
    torch.manual_seed(0)
    model, rate = accident()
    print(f"{accident.__name__}: {accident.__doc__}")
    try:
        with hookline.watch(model, NonFiniteHook("raise")):
            train(model, rate, images, labels)
    except hookline.NonFiniteError as error:
        print(f"  {error}")
        row = error.row
        place = f"{row.path!r} ({row.type}), {row.direction}, first at {row.position}"
        print(f"  -> {row.verdict}: {place}\n")


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    images, labels = load_data()
    for accident in (wild_rate, zero_in_the_backward, damaged_weight):
        hunt(accident, images, labels)


if __name__ == "__main__":
    main()
