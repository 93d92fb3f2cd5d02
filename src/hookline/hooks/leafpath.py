"""Paths of leaves, such as `output.hidden_states[2]`, taken apart so that they can be compared."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

from torch import Tensor

from hookline.core.names import shortened
from hookline.errors import HookTypeError, HookValueError
from hookline.torch_base.tree import describe, leaves

Keys: TypeAlias = tuple[str | int, ...]
"""The steps of a path: what a path begins with, then names and numbers."""

TARGETS: Final = ("output", "input", "grad")
_STEP: Final = re.compile(
    r"\.(?P<name>\w+)|\[(?P<number>-?\d+)\]|\['(?P<one>[^']*)'\]|\[\"(?P<two>[^\"]*)\"\]"
    r"|\[(?P<other>[^\]]*)\]"
)


class Leaf(NamedTuple):
    """A tensor in a structure.

    Attributes:
        path: how it is called in texts.
        keys: the steps to it.
        tensor: the tensor.
    """

    path: str
    keys: Keys
    tensor: Tensor


def keys_of(path: str) -> Keys | None:
    """The steps of a path; None if it is not well formed.

    Example:
        >>> keys_of("output.hidden_states[2]['a']")
        ('output', 'hidden_states', 2, 'a')
    """
    start = re.match(r"\w*", path)
    assert start is not None
    keys: list[str | int] = [start[0]]
    place = start.end()
    while place < len(path):
        step = _STEP.match(path, place)
        if step is None:
            return None
        number = step["number"]
        keys.append(int(number) if number else step[step.lastgroup or 0])
        place = step.end()
    return tuple(keys)


def target_of(path: object) -> Keys:
    """The steps of a path that says what an edit changes.

    Raises:
        HookTypeError: it is no text.
        HookValueError: it does not begin with a target, or is not well formed.
    """
    if not isinstance(path, str):
        msg = f"on= takes a path such as 'output[0]', not {path!r}"
        raise HookTypeError(msg)
    keys = keys_of(path)
    if keys is None or keys[0] not in TARGETS:
        msg = (
            f"on={path!r} is no path of what flows; it begins with 'output', 'input' or 'grad' "
            "(the gradient of the output): 'output[0]', 'output.logits', 'input.mask', 'grad'"
        )
        raise HookValueError(msg)
    return keys


def leaves_of(value: object, path: str, keys: Keys) -> list[Leaf]:
    """The tensors in a structure.

    Args:
        value: the structure.
        path: how it is called.
        keys: the steps to it.
    """
    if isinstance(value, Tensor):
        return [Leaf(path, keys, value)]
    found: list[Leaf] = []
    for name, tensor in leaves(value, ""):
        inner = keys_of(name)
        rest: Keys = (name,) if inner is None else inner[1:]
        found.append(Leaf(path + name, (*keys, *rest), tensor))
    return found


def matching(found: Sequence[Leaf], ways: Iterable[Keys]) -> tuple[Keys, list[int]]:
    """Which leaves a path means: by the first of its readings that means any.

    Returns:
        That reading, and the places of the leaves; no places if there are none.
    """
    keys: Keys = ()
    for keys in ways:
        places = [place for place, leaf in enumerate(found) if leaf.keys[: len(keys)] == keys]
        if places:
            return keys, places
    return keys, []


def listed_leaves(found: Sequence[Leaf]) -> str:
    """The leaves in words, for errors."""
    return shortened(f"{leaf.path} {describe(leaf.tensor)}" for leaf in found) or "no tensor"
