"""The models that are measured; nothing here knows hookline."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """A block of a small GPT."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention and MLP, each added to what came in."""
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """A small GPT: about 10 ms a training step on one core."""

    def __init__(self, width: int = 128, depth: int = 4, characters: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(characters, width)
        self.blocks = nn.Sequential(*[Block(width) for _ in range(depth)])
        self.head = nn.Linear(width, characters)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The logits of the next tokens."""
        return self.head(self.blocks(self.embed(tokens)))


class Residual(nn.Module):
    """Two convolutions, added to what came in."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(out), nn.BatchNorm2d(out)
        self.act1, self.act2 = nn.ReLU(), nn.ReLU()
        narrow = stride == 1 and channels == out
        self.short = None if narrow else nn.Conv2d(channels, out, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What is added passes a convolution of its own where shapes differ."""
        y = self.norm2(self.conv2(self.act1(self.norm1(self.conv1(x)))))
        return self.act2(y + (self.short(x) if self.short else x))


class ResNet(nn.Module):
    """A small ResNet for images of 32 x 32: three stages of two blocks."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width))
        sizes = [(1, 1, 1), (1, 1, 1), (1, 2, 2), (2, 2, 1), (2, 4, 2), (4, 4, 1)]
        self.blocks = nn.Sequential(*[Residual(i * width, o * width, s) for i, o, s in sizes])
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(4 * width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The logits of ten classes."""
        return self.head(self.pool(self.blocks(self.stem(images))).flatten(1))


def digits_cnn() -> nn.Module:
    """A CNN for the digits of scikit-learn, as in the example."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 10),
    )


def tiny(count: int) -> nn.Module:
    """So many modules that do nothing: whatever they take is overhead."""
    return nn.Sequential(*[nn.Identity() for _ in range(count)])


def training_step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    """Forward, backward and update."""
    optimizer, loss = torch.optim.Adam(model.parameters()), nn.CrossEntropyLoss()

    def step() -> None:
        optimizer.zero_grad()
        loss(model(x).flatten(0, -2), y).backward()
        optimizer.step()

    return step
