"""Five kinds of models, each with what runs one training step on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass
class Case:
    """A model, and its loss on a fixed batch."""

    name: str
    model: nn.Module
    loss: Callable[[], Tensor]


def _digits() -> tuple[Tensor, Tensor]:
    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(labels)


def _cnn() -> Case:
    images, labels = _digits()
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 10),
    )
    return Case("cnn", model, lambda: F.cross_entropy(model(images[:64]), labels[:64]))


class Block(nn.Module):
    """Two convolutions and the input added, as in a ResNet; one ReLU is used twice."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.act(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        out += x
        return self.act(out)


def _resnet() -> Case:
    images, labels = _digits()
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        Block(8),
        Block(8),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 10),
    )
    return Case("resnet", model, lambda: F.cross_entropy(model(images[:32]), labels[:32]))


class Rows(nn.Module):
    """An LSTM that reads an image row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 16, num_layers=2, batch_first=True)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        out, (_, _) = self.lstm(x.squeeze(1))
        return self.head(out[:, -1])


def _lstm() -> Case:
    images, labels = _digits()
    model = Rows()
    return Case("lstm", model, lambda: F.cross_entropy(model(images[:32]), labels[:32]))


def _tokens() -> tuple[Tensor, Tensor]:
    tokens = torch.randint(0, 50, (2, 12))
    padding = torch.ones_like(tokens)
    padding[1, 8:] = 0
    return tokens, padding


def _gpt2() -> Case:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2)
    model = GPT2LMHeadModel(config)
    tokens, padding = _tokens()
    return Case("gpt2", model, lambda: model(tokens, attention_mask=padding, labels=tokens).loss)


def _bert() -> Case:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
    )
    model: Any = BertForSequenceClassification(config)
    tokens, padding = _tokens()
    labels = torch.tensor([0, 1])
    return Case("bert", model, lambda: model(tokens, attention_mask=padding, labels=labels).loss)


_MAKERS = {"cnn": _cnn, "resnet": _resnet, "lstm": _lstm, "gpt2": _gpt2, "bert": _bert}


@pytest.fixture(params=_MAKERS)
def case(request: pytest.FixtureRequest) -> Case:
    """Each kind of model in turn."""
    torch.manual_seed(0)
    return _MAKERS[request.param]()


@pytest.fixture
def digits() -> tuple[Tensor, Tensor]:
    """Images (N×1×8×8, from 0 to 1) and labels."""
    return _digits()
