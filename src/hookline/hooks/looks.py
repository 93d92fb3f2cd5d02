"""Tensors that are looked at: at once, or, where that would wait for a device, later.

On a device only a sum is put in line when the tensor is there, and all sums are read together
later. The tensor is held weakly meanwhile: what is gone or was overwritten by then can no longer be
counted, only named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Final
from weakref import ref

import torch
from torch import Tensor

from hookline.hooks.finite import Found, described, examine, is_finite, total
from hookline.hooks.reading import numbers_of
from hookline.torch_base.readable import readable, version_of


class Look:
    """A tensor that a call was given or gave.

    Args:
        leaf: its path in the call's inputs or outputs.
        tensor: the tensor.
        finite: whether it is finite, if that is known; else it is found out when asked.
        overwritten: whether the call has written into it, so that it is no longer what was given.
        unsure: whether `finite` is a guess.

    Attributes:
        masks: whether, not being finite, it is known to hold no NaN and no +inf.
        flag: whether it holds truth values.
    """

    __slots__ = ("_finite", "_tensor", "flag", "leaf", "masks", "overwritten", "unsure")

    def __init__(
        self,
        leaf: str,
        tensor: Tensor | None,
        *,
        finite: bool | None = None,
        overwritten: bool = False,
        unsure: bool = False,
    ) -> None:
        self.leaf: Final = leaf
        self._tensor = tensor
        self._finite = finite
        self.overwritten: Final = overwritten
        self.unsure: Final = unsure
        self.masks = False
        self.flag = tensor is not None and tensor.dtype is torch.bool

    @property
    def tensor(self) -> Tensor | None:
        """The tensor, if it is there as it was."""
        return self._tensor

    @property
    def finite(self) -> bool:
        """Whether it is finite, or cannot be read."""
        if self._finite is None:
            values = None if self.tensor is None else readable(self.tensor)
            self._finite = values is None or is_finite(values)
        return self._finite

    def examine(self) -> Found | None:
        """What is not finite in it; None if all is."""
        return None if self._tensor is None else examine(self._tensor)


class LateLook(Look):
    """A tensor whose sum will be read later; it is held weakly.

    Args:
        leaf: its path in the call's inputs or outputs.
        tensor: the tensor.
        values: its numbers; None if it has none that can be read, and so no sum.
    """

    __slots__ = ("_described", "_ref", "_version", "sum")

    def __init__(self, leaf: str, tensor: Tensor, values: Tensor | None) -> None:
        super().__init__(leaf, None, finite=values is None or None)
        self.flag = tensor.dtype is torch.bool
        self.sum: Final = None if values is None else total(values, exact=True)
        self._described = described(tensor)
        self._version = version_of(tensor)
        self._ref = ref(tensor)

    @property
    def tensor(self) -> Tensor | None:
        """The tensor, if it is there as it was."""
        tensor = self._ref()
        return tensor if tensor is not None and version_of(tensor) == self._version else None

    def read(self, value: float) -> None:
        """Take the sum as it was read."""
        self._finite = math.isfinite(value)
        self.masks = value == -math.inf

    def examine(self) -> Found | None:
        """What is not finite in it, as far as that can still be told."""
        tensor = self.tensor
        if self.finite:
            return None
        return self._described._replace(masks=self.masks) if tensor is None else examine(tensor)


class Line:
    """Looks in line, and what is to be done once their sums are read; in order."""

    LIMIT: Final = 4096
    """So many are read at the latest."""

    def __init__(self) -> None:
        self._waiting: list[tuple[list[LateLook], Callable[[], None]]] = []
        self._known: dict[int, LateLook] = {}
        self._count = 0

    def look(self, leaf: str, tensor: Tensor, values: Tensor | None) -> LateLook:
        """Look at a tensor; one that was looked at and is unchanged is not added up again."""
        known = self._known.get(id(tensor))
        if known is not None and known.tensor is tensor:
            return known
        look = self._known[id(tensor)] = LateLook(leaf, tensor, values)
        return look

    def add(self, looks: Iterable[LateLook], then: Callable[[], None]) -> None:
        """Put looks in line, with what is to be done once they are read."""
        self._waiting.append((list(looks), then))
        self._count += len(self._waiting[-1][0])
        if self._count >= self.LIMIT:
            self.read()

    def read(self) -> None:
        """Read all sums, with one wait for each device, and go on with what waited for them."""
        waiting, self._waiting, self._count = self._waiting, [], 0
        self._known.clear()
        summed = {id(look): look for looks, _ in waiting for look in looks if look.sum is not None}
        sums = numbers_of([look.sum for look in summed.values() if look.sum is not None])
        for look, (value,) in zip(summed.values(), sums, strict=True):
            look.read(value)
        for _, then in waiting:
            then()

    def clear(self) -> None:
        """Drop what is in line."""
        self._waiting.clear()
        self._known.clear()
        self._count = 0

    def __len__(self) -> int:
        return self._count
