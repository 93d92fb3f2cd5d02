"""Containers of several kinds, as the tests of structures share them."""

from collections import UserDict, UserList
from dataclasses import dataclass
from typing import NamedTuple


class Pair(NamedTuple):
    first: object
    second: object


class Attributed(tuple):  # noqa: SLOT001 - it is here for its `__dict__`
    """A tuple subclass with a constructor of its own, and attributes."""

    def __new__(cls, label, *items):
        made = super().__new__(cls, items)
        made.label = label
        return made


class Bag(UserDict):
    def __init__(self, name, items):
        self.name = name
        super().__init__(items)


class Row(UserList):
    pass


@dataclass
class Plain:
    logits: object
    extra: object = None


@dataclass(frozen=True)
class Frozen:
    logits: object
    extra: object = None
