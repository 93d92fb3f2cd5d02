"""Whether a call means the -inf that it is given or gives: the rules of `masks`, applied."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from torch import Tensor, nn

from hookline.functions.call import FunctionCall
from hookline.hooks.arguments import parameter_names
from hookline.hooks.evidence import Remembered, State
from hookline.hooks.finite import Found
from hookline.hooks.looks import Look
from hookline.hooks.masks import GIVEN, MOVES, explained, is_mask, makes_mask

_POSITION: Final = re.compile(r"args\[(\d+)\]")


class Meant:
    """Knows which -inf were let through and which were reported.

    Args:
        on: whether any are let through.
    """

    def __init__(self, *, on: bool) -> None:
        self._on: Final = on
        self._passed = Remembered()
        self._reported = Remembered()

    def report(self, look: Look) -> None:
        """Remember a tensor as a finding."""
        if look.tensor is not None:
            self._reported.add(look.tensor)

    def given(self, call: Any, look: Look) -> bool:
        """Whether an input that is not finite is a mask.

        A function's is one if it looks like one, since what functions make was seen. Code between
        modules was not: a module's is one if it was let through before, or if its name says so.
        """
        tensor = look.tensor
        if not self._on or isinstance(tensor, nn.Parameter):
            return False
        if tensor is not None and tensor in self._reported:
            return False
        if tensor is not None and tensor in self._passed:
            return True
        name = "" if isinstance(call, FunctionCall) else _argument(call, look.leaf)
        if not isinstance(call, FunctionCall) and not ("mask" in name or "bias" in name):
            return False
        return look.masks if tensor is None else is_mask(tensor, name or look.leaf)

    def gives(
        self, call: Any, look: Look, found: Found, inputs: Sequence[Look], state: State
    ) -> bool:
        """Whether an output that is not finite is a mask, or masked."""
        if not (self._on and found.masks):
            return False
        tensor = look.tensor
        if isinstance(call, FunctionCall) and call.name in GIVEN:
            meant = True
        elif tensor is None:  # it cannot be told any more where the -inf are
            meant = any(each.masks or each.flag for each in inputs)
        else:
            meant = tensor in self._passed or _explained(call, tensor, inputs, state)
        if meant and tensor is not None:
            self._passed.add(tensor)
        return meant


def _explained(call: Any, tensor: Tensor, inputs: Sequence[Look], state: State) -> bool:
    if state.was_mask:
        return True
    given = [(look, look.tensor) for look in inputs]
    masks = [
        each
        for look, each in given
        if each is not None
        and each is not tensor
        and not look.overwritten
        and not isinstance(each, nn.Parameter)
    ]
    if explained(tensor, masks):
        return True
    if isinstance(call, FunctionCall):
        return call.name in MOVES and _are_masks(inputs)
    return makes_mask(tensor, [each for _, each in given if each is not None])


def _are_masks(inputs: Sequence[Look]) -> bool:
    """Whether some are not finite, and all that are not hold no NaN and no +inf."""
    found = [look.examine() for look in inputs if not look.finite]
    return bool(found) and all(each is not None and each.masks for each in found)


def _argument(call: Any, leaf: str) -> str:
    """What a module calls an input: the parameter of its `forward`, or the path."""
    position = _POSITION.match(leaf)
    names = [] if position is None else parameter_names(call.key())[int(position[1]) :]
    return names[0] if names else leaf
