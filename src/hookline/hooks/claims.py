"""Which storage is kept for the backward by which call: by the one that kept it first."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Final
from weakref import WeakKeyDictionary, WeakSet

from torch import Tensor, UntypedStorage, nn

from hookline.core.calls import Pass
from hookline.torch_base.saved import Saved
from hookline.torch_base.storages import is_number, size_of, storages_of
from hookline.torch_base.tree import tensors


class Claim:
    """A storage that is kept for the backward.

    Attributes:
        number: the number of the first node that keeps it.
        size: its size in bytes.
        packed: whether it is in what a hook packed a tensor into.
    """

    __slots__ = ("number", "packed", "size")

    def __init__(self, number: int, size: int, *, packed: bool) -> None:
        self.number = number
        self.size: Final = size
        self.packed: Final = packed


class Claims:
    """The storages that are kept in one pass; none is kept alive by this.

    Args:
        running: the pass. What its root holds anyway, as parameters and buffers, is left out.
    """

    def __init__(self, running: Pass) -> None:
        self._found: WeakKeyDictionary[UntypedStorage, Claim] = WeakKeyDictionary()
        self._held: Final = WeakSet(_held_by(getattr(running.root, "module", None)))

    def of(self, saved: Saved) -> Iterator[Claim]:
        """The new claims of what a node keeps; one that was there may get an earlier node."""
        for tensor in tensors(saved.value):
            if is_number(tensor):  # hooks for saved tensors get to see none either
                continue
            for storage in storages_of(tensor):
                claim = self._found.get(storage)
                if claim is not None:
                    claim.number = min(claim.number, saved.number)
                elif storage not in self._held and not _is_parameter(tensor):
                    claim = Claim(saved.number, size_of(storage), packed=saved.packed)
                    self._found[storage] = claim
                    yield claim


def _held_by(root: nn.Module | None) -> Iterator[UntypedStorage]:
    if root is not None:
        for tensor in (*root.parameters(), *root.buffers()):
            yield from storages_of(tensor)


def _is_parameter(tensor: Tensor) -> bool:
    """Whether it is a parameter or a view of one, of whatever model."""
    return isinstance(tensor, nn.Parameter) or isinstance(
        tensor._base,  # noqa: SLF001 - torch documents it
        nn.Parameter,
    )


class Sums:
    """Amounts by sequence number, added up between any two.

    Args:
        amounts: numbers, each with an amount.
    """

    def __init__(self, amounts: Iterable[tuple[int, int]]) -> None:
        ordered = sorted(amounts)
        self._numbers: Final = [number for number, _ in ordered]
        self._totals: Final = list(accumulate((amount for _, amount in ordered), initial=0))

    def between(self, start: int, stop: int) -> int:
        """The sum of those numbered from `start` up to before `stop`."""
        first = bisect_left(self._numbers, start)
        return self._totals[bisect_left(self._numbers, stop, first)] - self._totals[first]
