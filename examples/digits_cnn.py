"""Train a small convolutional network on scikit-learn's scans of handwritten digits.

A plain PyTorch script: run it as it is, or under hookline without changing a line of it:

    python examples/digits_cnn.py --epochs 5
    hookline run --time examples/digits_cnn.py --epochs 5
"""

import argparse
from collections import OrderedDict
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

BATCH_SIZE = 64
TEST_SIZE = 360


class ConvBlock(nn.Module):
    """Convolution, normalisation, in-place ReLU, and half the height and width."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size=3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(out_channels)
        self.act = nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, in, height, width) to (batch, out, height / 2, width / 2)."""
        return self.pool(self.act(self.norm(self.conv(x))))


class Net(nn.Module):
    """Two convolutional blocks and a linear classifier, for grey images of 8 x 8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        blocks = OrderedDict(block1=ConvBlock(1, 16), block2=ConvBlock(16, 32))
        self.features = nn.Sequential(blocks)
        self.classifier = nn.Linear(32 * 2 * 2, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Give the ten logits of each image."""
        return self.classifier(self.features(x).flatten(1))


def load_data() -> tuple[Tensor, Tensor]:
    """Load all images, scaled to 0..1, and their digits, in random order."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels))
    return images[order], labels[order]


def batches(images: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Cut one epoch into mini-batches, in random order."""
    for index in torch.randperm(len(labels)).split(BATCH_SIZE):
        yield images[index], labels[index]


def train_epoch(
    net: Net, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor
) -> float:
    """Train for one epoch and return the mean loss."""
    net.train()
    total = 0.0
    for x, y in batches(images, labels):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(y)
    return total / len(labels)


@torch.no_grad()
def accuracy(net: Net, images: Tensor, labels: Tensor) -> float:
    """Return the share of images whose digit the network tells."""
    net.eval()
    return (net(images).argmax(1) == labels).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small CNN on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=5, help="passes over the data (default: 5)")
    args = parser.parse_args()

    torch.set_num_threads(1)  # for so small a model, more threads only wait for each other
    torch.manual_seed(0)
    images, labels = load_data()
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)

    for epoch in range(1, args.epochs + 1):
        loss = train_epoch(net, optimizer, images[TEST_SIZE:], labels[TEST_SIZE:])
        right = accuracy(net, images[:TEST_SIZE], labels[:TEST_SIZE])
        print(f"epoch {epoch}: loss {loss:.4f}, test accuracy {right:.4f}")


if __name__ == "__main__":
    main()
