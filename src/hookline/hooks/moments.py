"""Mean, spread and the like of many numbers, in one pass over them and in little memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, isfinite, sqrt
from typing import Final

import torch
from torch import Tensor

PIECE: Final = 2**20
"""So many numbers are worked on at once, in 64 bits: 8 MiB."""


@dataclass(slots=True)
class Moments:
    """What is kept of numbers that were seen.

    Two of these merge into that of both (Chan, Golub and LeVeque's update), without loss of
    precision where the mean is large and the spread small.

    Example:
        >>> import torch
        >>> whole = Moments()
        >>> for part in ([1.0, 2.0], [6.0]):
        ...     whole.merge(Moments.of(torch.tensor(part)))
        >>> whole.count, whole.mean, round(whole.std, 3)
        (3, 3.0, 2.16)
    """

    count: int = 0
    """How many finite numbers."""
    mean: float = 0.0
    """Their mean."""
    squares: float = 0.0
    """The sum of their squared distances from the mean."""
    minimum: float = inf
    """The smallest; inf if there is none."""
    maximum: float = -inf
    """The largest; -inf if there is none."""
    zeros: int = 0
    """How many are exactly zero."""
    nan: int = 0
    """How many others are NaN."""
    infinite: int = 0
    """How many others are infinite."""

    @classmethod
    def of(cls, values: Tensor) -> Moments:
        """Those of a tensor's numbers; waits for the device."""
        return cls.read(measure(values).flatten().tolist())

    @classmethod
    def read(cls, numbers: Sequence[float]) -> Moments:
        """Those in what `measure` gave, flat."""
        found = cls()
        for count, mean, squares, low, high, zeros, nan, bad in zip(
            *[iter(numbers)] * 8, strict=True
        ):
            counts = int(zeros), int(nan), int(bad)
            found.merge(cls(int(count), mean, squares, low, high, *counts))
        return found

    @property
    def std(self) -> float:
        """The standard deviation, divided by the count."""
        return sqrt(self.squares / self.count) if self.count else 0.0

    @property
    def abs_max(self) -> float:
        """The largest magnitude."""
        return max(abs(self.minimum), abs(self.maximum))

    @property
    def sum_of_squares(self) -> float:
        """The sum of the squares of the numbers themselves."""
        return self.squares + self.count * self.mean * self.mean

    def merge(self, other: Moments) -> None:
        """Add what is known of other numbers."""
        count = self.count + other.count
        if count:
            apart = other.mean - self.mean
            self.mean += apart * other.count / count
            self.squares += other.squares + apart * apart * self.count * other.count / count
        self.count = count
        self.minimum = min(self.minimum, other.minimum)
        self.maximum = max(self.maximum, other.maximum)
        self.zeros += other.zeros
        self.nan += other.nan
        self.infinite += other.infinite

    def scaled(self, factor: float) -> Moments:
        """Those of the numbers times a positive factor."""
        return Moments(
            self.count,
            self.mean * factor,
            self.squares * factor * factor,
            self.minimum * factor,
            self.maximum * factor,
            self.zeros,
            self.nan,
            self.infinite,
        )


def measure(values: Tensor) -> Tensor:
    """The moments of a tensor's numbers, a row for each piece of it, on its own device.

    Args:
        values: floating point numbers; of complex ones the magnitudes are taken.

    Returns:
        64-bit numbers: in each row the fields of `Moments` in order.
    """
    rows = [_row(piece) for piece in pieces(values)]
    return torch.stack(rows) if rows else values.new_zeros((0, 8), dtype=torch.float64)


def _row(piece: Tensor) -> Tensor:
    numbers = (piece.abs() if piece.is_complex() else piece).double()
    if numbers.is_cpu:
        total = numbers.sum().item()
        if isfinite(total) or numbers.isfinite().all():
            return _finite_row(numbers, total / numbers.numel())
    finite = numbers.isfinite()
    count = finite.sum(dtype=torch.float64)
    mean = numbers.where(finite, 0).sum() / count.clamp(min=1)
    squares = _square_sum((numbers - mean).where(finite, 0))
    low = numbers.where(finite, inf).amin()
    high = numbers.where(finite, -inf).amax()
    nan = numbers.isnan().sum(dtype=torch.float64)
    zeros = numbers.numel() - numbers.count_nonzero().double()
    return torch.stack((count, mean, squares, low, high, zeros, nan, numbers.numel() - count - nan))


def _finite_row(numbers: Tensor, mean: float) -> Tensor:
    """The row of finite numbers on a CPU, where reading one is cheaper than another operation."""
    count = numbers.numel()
    squares = _square_sum(numbers - mean).item()
    low, high = (each.item() for each in numbers.aminmax())
    zeros = count - int(numbers.count_nonzero())
    return torch.tensor((count, mean, squares, low, high, zeros, 0, 0), dtype=torch.float64)


def _square_sum(numbers: Tensor) -> Tensor:
    return torch.dot(numbers, numbers)


def square_sum(values: Tensor) -> Tensor:
    """The sum of the squared magnitudes of a tensor's numbers, in 64 bits, on its own device."""
    sums = [
        _square_sum((piece.abs() if piece.is_complex() else piece).double())
        for piece in pieces(values)
    ]
    return torch.stack(sums).sum() if sums else values.new_zeros((), dtype=torch.float64)


def pieces(values: Tensor) -> Iterator[Tensor]:
    """A tensor's numbers, flat, at most `PIECE` at once, so that no copy of it is large."""
    count = values.numel()
    if count <= PIECE:
        if count:
            yield values.reshape(-1)
        return
    longest = max(range(values.dim()), key=lambda dim: values.shape[dim])
    for part in values.split(max(1, values.shape[longest] * PIECE // count), longest):
        yield from pieces(part)


def sample_of(values: Tensor, limit: int) -> Tensor:
    """At most so many of a tensor's numbers, flat and evenly spread; no random number is drawn."""
    count = values.numel()
    if count <= limit:
        return values.reshape(-1)
    return values.take(torch.arange(limit, device=values.device) * (count // limit))
