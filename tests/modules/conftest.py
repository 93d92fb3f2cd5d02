"""A layer and its input."""

import pytest
import torch
from torch import nn


@pytest.fixture
def x():
    torch.manual_seed(0)
    return torch.randn(3, 10)


@pytest.fixture
def linear():
    torch.manual_seed(1)
    return nn.Linear(10, 5)
