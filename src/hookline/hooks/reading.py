"""Reading numbers that wait on their devices."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor


def numbers_of(tensors: Sequence[Tensor]) -> list[list[Any]]:
    """The numbers of each of some tensors, flat; each device is waited for once.

    Example:
        >>> numbers_of([torch.tensor(1.0), torch.tensor([[2.0], [3.0]])])
        [[1.0], [2.0, 3.0]]
    """
    found: list[list[Any]] = [[] for _ in tensors]
    for device in {tensor.device for tensor in tensors}:
        places = [place for place, tensor in enumerate(tensors) if tensor.device == device]
        parts = [tensors[place].reshape(-1) for place in places]
        numbers = iter((parts[0] if len(parts) == 1 else torch.cat(parts)).tolist())
        for place, part in zip(places, parts, strict=True):
            found[place] = list(islice(numbers, len(part)))
    return found
