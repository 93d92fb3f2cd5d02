"""The structure of a call's inputs or outputs without their tensors: where gradients go."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from torch import Tensor

from hookline.torch_base.containers import OPAQUE, TENSOR, rule_of
from hookline.torch_base.tree import Tree


class Misfit(Exception):  # noqa: N818 - never leaves the package
    """A value does not have the outline's structure."""


class _Slot:
    __slots__ = ("place",)

    def __init__(self, place: int) -> None:
        self.place: Final = place


class Outline:
    """A structure with numbered slots where tensors stood and None for all else.

    It holds no tensor, so a call may keep it until its backward.

    Args:
        frame: the structure, with slots in it.
        count: the number of slots.
    """

    __slots__ = ("_flat", "_frame", "count")

    def __init__(self, frame: Any, count: int) -> None:
        self.count: Final = count
        self._frame: Final = frame
        # Nothing but the slots in order, as for a call that returns a tensor.
        self._flat: Final = type(frame) is tuple and [
            part.place if type(part) is _Slot else None for part in frame
        ] == list(range(count))

    @classmethod
    def of(cls, tree: Tree) -> Outline:
        """The outline of a value taken apart."""
        count = len(tree.tensors)
        return cls(tree.mirror(_slots(count)), count)

    @classmethod
    @cache
    def of_tensors(cls, count: int) -> Outline:
        """The outline of a tuple of so many tensors."""
        return cls(_slots(count), count)

    @classmethod
    @cache
    def of_positional(cls, count: int) -> Outline:
        """The outline of inputs that are so many tensors by position and none by keyword."""
        return cls((_slots(count), {}), count)

    def fill(self, values: Sequence[object]) -> Any:
        """The structure with one value in each slot."""
        if self._flat:
            return tuple(values)
        return _fill(self._frame, values)

    def read(self, value: object) -> list[Tensor | None]:
        """The tensors that stand in the slots of a value of this structure.

        Raises:
            Misfit: if the value has another structure.
        """
        found: list[Tensor | None] = [None] * self.count
        _read(self._frame, value, found)
        return found


def _slots(count: int) -> tuple[_Slot, ...]:
    return tuple(_Slot(place) for place in range(count))


def _fill(frame: Any, values: Sequence[object]) -> Any:
    cls = type(frame)
    if cls is _Slot:
        return values[frame.place]
    if cls is tuple:  # by far the most frequent container
        return tuple([_fill(child, values) for child in frame])
    rule = rule_of(cls)
    if rule is OPAQUE:
        return frame
    return rule.close(frame, [_fill(child, values) for child in rule.children(frame)])


def _read(frame: Any, value: Any, found: list[Tensor | None]) -> None:
    if type(frame) is _Slot:
        if not isinstance(value, Tensor | None):
            raise Misfit
        found[frame.place] = value
        return
    rule = rule_of(type(frame))
    if rule is OPAQUE:
        if value is not frame:
            raise Misfit
        return
    for inner, child in zip(*_children(frame, value), strict=True):
        _read(inner, child, found)


def _children(frame: Any, value: Any) -> tuple[list[Any], list[Any]]:
    if isinstance(frame, dict):
        if not isinstance(value, dict) or frame.keys() != value.keys():
            raise Misfit
        return list(frame.values()), [value[key] for key in frame]
    rule = rule_of(type(value))
    kin = isinstance(value, list | tuple) and isinstance(frame, list | tuple)
    if rule in (OPAQUE, TENSOR) or not (kin or type(value) is type(frame)):
        raise Misfit
    pair = list(rule_of(type(frame)).children(frame)), list(rule.children(value))
    if len(pair[0]) != len(pair[1]):
        raise Misfit
    return pair
