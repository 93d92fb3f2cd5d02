"""Which part of a tensor an edit changes, and putting the changed part back."""

from __future__ import annotations

from dataclasses import dataclass
from types import EllipsisType
from typing import Any, Final, TypeAlias

from torch import Tensor

from hookline.errors import HooklineError, HookTypeError, HookValueError
from hookline.torch_base.tree import describe


class EditError(Exception):
    """An edit cannot be made; where it stands is added before it leaves the package.

    Args:
        kind: the class of the error that leaves it.
        message: why.
    """

    def __init__(self, kind: type[HooklineError], message: str) -> None:
        super().__init__(message)
        self.kind = kind


_INDICES: Final = (int, slice, tuple, list, Tensor, EllipsisType)


@dataclass(frozen=True, slots=True)
class Head:
    """One of equal parts that stand side by side in a dimension; `head` makes it."""

    index: int | slice | list[int]
    count: int
    dim: int = -1

    def take(self, value: Tensor) -> Tensor:
        """The part of a tensor."""
        return self._apart(value)[self._place(value)]

    def put(self, value: Tensor, part: Tensor) -> Tensor:
        """A copy of the tensor with another part."""
        whole, dim = self._apart(value).clone(), self.dim % value.ndim
        whole[self._place(value)] = part
        return whole.flatten(dim, dim + 1)

    def _apart(self, value: Tensor) -> Tensor:
        if not -value.ndim <= self.dim < value.ndim or value.shape[self.dim] % self.count:
            msg = f"{self} does not fit {describe(value)}: there are no {self.count} equal parts"
            raise EditError(HookValueError, msg)
        return value.unflatten(self.dim % value.ndim, (self.count, -1))

    def _place(self, value: Tensor) -> tuple[Any, ...]:
        return (*[slice(None)] * (self.dim % value.ndim), self.index)

    def __str__(self) -> str:
        dim = "" if self.dim == -1 else f", dim={self.dim}"
        return f"head({self.index}, {self.count}{dim})"


At: TypeAlias = int | slice | EllipsisType | tuple[Any, ...] | list[Any] | Tensor | Head | None
"""A part of a tensor: what may stand in `tensor[...]`, or a head; None for the whole."""


def head(index: int | slice | list[int], count: int, dim: int = -1) -> Head:
    """One attention head (or several) of a tensor in which the heads stand side by side.

    Args:
        index: which one; a slice or list of numbers for several.
        count: how many heads there are.
        dim: the dimension in which they stand; its size is `count` times the size of a head.

    Returns:
        What an edit takes as `at=`; the edit sees the dimension split in two, without that of
        the heads if `index` is a number: `(..., size)` or `(..., heads, size)`.

    Raises:
        HookTypeError: an argument is of the wrong type.
        HookValueError: there are not so many heads.

    Example:
        >>> import torch
        >>> from hookline.edits import head, zero
        >>> zero(at=head(1, 3))(torch.arange(1.0, 7.0))
        tensor([1., 2., 0., 0., 5., 6.])
    """
    if type(count) is not int or type(dim) is not int or not _is_place(index):
        msg = f"head takes head(index, count), such as head(0, 12), not head({index!r}, {count!r})"
        raise HookTypeError(msg)
    numbers = [index] if isinstance(index, int) else index if isinstance(index, list) else []
    if count < 1 or not all(-count <= number < count for number in numbers):
        msg = f"there is no head {index} of {count}; the first of {count} is head(0, {count})"
        raise HookValueError(msg)
    return Head(index, count, dim)


def _is_place(index: object) -> bool:
    if isinstance(index, list):
        return all(type(number) is int for number in index)
    return type(index) is int or isinstance(index, slice)


def check_at(at: object) -> None:
    """Refuse what says no part of a tensor.

    Raises:
        HookTypeError: it does not.
    """
    if at is not None and (isinstance(at, bool) or not isinstance(at, (*_INDICES, Head))):
        msg = f"at= takes what may stand in tensor[...], or head(index, count), not {at!r}"
        raise HookTypeError(msg)


def take(value: Tensor, at: At) -> Tensor:
    """The part of a tensor.

    Raises:
        EditError: there is no such part.
    """
    if at is None:
        return value
    try:
        return at.take(value) if isinstance(at, Head) else value[at]
    except (IndexError, TypeError) as error:
        msg = f"at={at_text(at)} is no part of {describe(value)}: {error}"
        raise EditError(HookValueError, msg) from error


def put(value: Tensor, at: At, part: Tensor) -> Tensor:
    """A tensor with another part; the given tensor stays as it is."""
    if at is None:
        return part
    if isinstance(at, Head):
        return at.put(value, part)
    whole = value.clone()
    whole[at] = part
    return whole


def at_text(at: object) -> str:
    """An index as it would be written in brackets.

    Example:
        >>> at_text((slice(None), -1, slice(2, None, 3), ...))
        '[:, -1, 2::3, ...]'
    """
    if isinstance(at, Head):
        return str(at)
    return f"[{', '.join(map(_item, at)) if isinstance(at, tuple) else _item(at)}]"


def _item(item: object) -> str:
    match item:
        case slice(start=start, stop=stop, step=step):
            ends = ["" if end is None else str(end) for end in (start, stop)]
            return ":".join(ends if step is None else [*ends, str(step)])
        case EllipsisType():
            return "..."
        case Tensor():
            return describe(item)
        case _:
            return str(item)
