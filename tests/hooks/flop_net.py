"""A small model whose FLOPs are known."""

from __future__ import annotations

from collections import Counter

import torch
from torch import nn


class Net(nn.Module):
    """Two layers, the second in a container; what else is needed is done in between."""

    def __init__(self, between=lambda x: x):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.head = nn.Linear(4, 2)
        self.between = between

    def forward(self, x):
        return self.head(self.between(self.body(x)))


BODY, HEAD = 2 * 3 * 4 * 4, 2 * 3 * 4 * 2


def batch():
    return torch.linspace(-1, 1, 12).reshape(3, 4)


def own_flops(hook):
    """What each path made itself, by direction; zeros are left out."""
    found = Counter()
    for row in hook.rows():
        found[row.path, row.direction] += row.self_flops
    return {key: flops for key, flops in found.items() if flops}


STEP = {
    ("body.0", "forward"): BODY,
    ("head", "forward"): HEAD,
    ("head", "backward"): 2 * HEAD,
    ("body.0", "backward"): BODY,
}
