"""The structure of a call's inputs or outputs without their tensors: where gradients go."""

from __future__ import annotations

from collections.abc import Sequence
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
        tree: the value taken apart.

    Attributes:
        count: the number of slots.
    """

    __slots__ = ("_frame", "count")

    def __init__(self, tree: Tree) -> None:
        self.count: Final = len(tree.tensors)
        self._frame: Final = tree.mirror([_Slot(place) for place in range(self.count)])

    def fill(self, values: Sequence[object]) -> Any:
        """The structure with one value in each slot."""
        return _fill(self._frame, values)

    def read(self, value: object) -> list[Tensor | None]:
        """The tensors that stand in the slots of a value of this structure.

        Raises:
            Misfit: if the value has another structure.
        """
        found: list[Tensor | None] = [None] * self.count
        _read(self._frame, value, found)
        return found


def _fill(frame: Any, values: Sequence[object]) -> Any:
    if type(frame) is _Slot:
        return values[frame.place]
    rule = rule_of(type(frame))
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
