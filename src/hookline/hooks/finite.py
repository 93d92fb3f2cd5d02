"""Whether a tensor is finite, at the price of one sum; and what is wrong with one that is not."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import torch
from torch import Tensor

from hookline.torch_base.readable import readable, shape_of, stored_values

_HALF: Final = frozenset({torch.float16, torch.bfloat16})


class Found(NamedTuple):
    """What is not finite in a tensor.

    Attributes:
        shape: the shape of the tensor.
        dtype: its dtype, without `torch.`.
        nan: how many of its values are NaN; None where the tensor is gone.
        inf: how many are infinite; None where the tensor is gone.
        position: the index of the first of both; None where it is not known.
        masks: whether all of them are -inf, as in an additive mask.
    """

    shape: tuple[int, ...]
    dtype: str
    nan: int | None = None
    inf: int | None = None
    position: tuple[int, ...] | None = None
    masks: bool = False


def total(values: Tensor, *, exact: bool = False) -> Tensor:
    """The sum of values, which is finite only if all of them are.

    Where a value is NaN or infinite, so is every sum that it is in. The opposite does not hold: a
    sum may overflow, which `exact` excludes for all but 64-bit numbers.

    Args:
        values: floating point or complex numbers.
        exact: add up in 64 bits, which costs little on a device and much on a CPU.
    """
    if values.is_complex():
        values = torch.view_as_real(values)
    if exact:
        return values.sum(dtype=torch.float64)
    return values.sum(dtype=torch.float32) if values.dtype in _HALF else values.sum()


def is_finite(values: Tensor) -> bool:
    """Whether all values are finite; waits for the device."""
    return math.isfinite(total(values).item()) or bool(values.isfinite().all())


def seems_finite(tensor: Tensor) -> bool:
    """Whether no value of any tensor, readable or not, is known to be NaN or infinite."""
    values = readable(tensor)
    return values is None or is_finite(values)


def described(tensor: Tensor, *, masks: bool = False) -> Found:
    """What is known of a tensor without looking at its values."""
    return Found(shape_of(tensor), str(tensor.dtype).removeprefix("torch."), masks=masks)


def examine(tensor: Tensor) -> Found | None:
    """Count what is not finite, and find the first; None if all is finite or cannot be read."""
    values = readable(tensor)
    if values is None:
        return None
    nan, inf = values.isnan(), values.isinf()
    wrong = nan | inf
    counts = int(nan.sum()), int(inf.sum())
    if not any(counts):
        return None
    place = int(wrong.flatten().to(torch.uint8).argmax())
    masks = not values.is_complex() and bool((values[wrong] < 0).all())
    position = _position(tensor, values, place)
    return described(tensor)._replace(nan=counts[0], inf=counts[1], position=position, masks=masks)


def _position(tensor: Tensor, values: Tensor, place: int) -> tuple[int, ...] | None:
    """The index in the tensor of the value that is at a place among its values."""
    index = tuple(map(int, torch.unravel_index(torch.tensor(place), values.shape)))
    if tensor.layout is torch.strided and values.shape == shape_of(tensor):
        return index
    if tensor.layout is torch.sparse_coo:
        return (*tensor.detach().coalesce().indices()[:, index[0]].tolist(), *index[1:])
    if tensor.layout in (torch.sparse_csr, torch.sparse_csc):
        coordinates = tensor.detach().to_sparse_coo().coalesce()
        places = (~stored_values(coordinates).isfinite()).nonzero()
        return tuple(coordinates.indices()[:, int(places[0])].tolist())
    return index if tensor.is_mkldnn else None
