"""Watch gradients vanish in a deep network, and three cures.

    python examples/gradient_flow.py [gradient_flow.png]

Four networks of 20 layers learn handwritten digits: with sigmoids, with ReLUs, with ReLUs and He's
initialisation, and with residual connections and layer norms. `StatsHook` measures the gradient at
each layer's output over one epoch; the plot shows it over depth, on a logarithmic scale.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import Tensor, nn

import hookline
from hookline.module_hooks import StatsHook

DEPTH, WIDTH, BATCH_SIZE = 20, 64, 64


class Residual(nn.Module):
    """A layer whose input is added again."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, width) to the same."""
        return x + self.linear(self.norm(x)).relu()


def deep(activation: type[nn.Module], *, he: bool = False) -> nn.Sequential:
    """A deep network of plain layers: `layers.0` to `layers.19`, and a classifier."""
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), activation()) for _ in range(DEPTH)]
    for layer in layers if he else ():
        nn.init.kaiming_normal_(layer[0].weight, nonlinearity="relu")
        nn.init.zeros_(layer[0].bias)
    return _classifier(layers)


def residual() -> nn.Sequential:
    """The same depth with residual connections."""
    return _classifier([Residual() for _ in range(DEPTH)])


def _classifier(layers: list[nn.Module]) -> nn.Sequential:
    model = nn.Sequential()
    model.add_module("layers", nn.Sequential(*layers))
    model.add_module("classifier", nn.Linear(WIDTH, 10))
    return model


def gradients(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[list[float], float]:
    """Train for one epoch: the gradient's standard deviation by layer, and the last loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loss = torch.tensor(0.0)
    stats = StatsHook(every=1, activations=False, parameters=False, histogram=False)
    with hookline.watch(model, stats, where="layers.*"):
        for index in torch.randperm(len(labels)).split(BATCH_SIZE):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images[index]), labels[index])
            loss.backward()
            optimizer.step()
    by_path = {row.path: row.std for row in stats.rows()}
    return [by_path[f"layers.{number}"] for number in range(DEPTH)], loss.item()


def draw(curves: dict[str, list[float]]) -> Figure:
    """The gradients over depth."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for name, values in curves.items():
        axes.semilogy(range(DEPTH), values, marker="o", markersize=4, label=name)
    axes.set(
        xlabel="layer", ylabel="gradient at its output (std)", title="Gradient flow, one epoch"
    )
    axes.set_xticks(range(0, DEPTH, 2))
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description="Plot how gradients flow through deep networks.")
    parser.add_argument("plot", nargs="?", default="gradient_flow.png", help="the file to write")
    path = parser.parse_args().plot

    torch.set_num_threads(1)
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    models = {
        "sigmoid": deep(nn.Sigmoid),
        "ReLU": deep(nn.ReLU),
        "ReLU, He init": deep(nn.ReLU, he=True),
        "residual, layer norm": residual(),
    }
    curves: dict[str, list[float]] = {}
    print(f"{'network':<22}{'first layer':>14}{'last layer':>14}{'last loss':>12}")
    for name, model in models.items():
        curves[name], loss = gradients(model, images, labels)
        print(f"{name:<22}{curves[name][0]:>14.2e}{curves[name][-1]:>14.2e}{loss:>12.3f}")
    draw(curves).savefig(path, dpi=120)
    print(f"\nwrote {path}")


if __name__ == "__main__":
    main()
