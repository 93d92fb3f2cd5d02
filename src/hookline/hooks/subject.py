"""Of what something is measured: a module or function, in one mode and direction."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, NamedTuple

from hookline.functions.call import FunctionCall

_REMEMBERED: Final = 2**14
"""A program may make modules without end; so many names are those of a very large model."""


class Subject(NamedTuple):
    """A module or function, in one mode and direction; the fields are those of the rows."""

    root: str
    path: str | None
    type: str
    level: str
    mode: str
    direction: str
    name: str = ""

    @property
    def label(self) -> str:
        """What it goes by: a function by its name, a module by its path, a root by its own name."""
        return self.name or self.path or self.root


# At each call of each meter: one is looked up faster than made.
_known: Final = lru_cache(_REMEMBERED)(Subject)


def subject_of(call: Any, direction: str) -> Subject:
    """Of what a call is, at either level.

    Args:
        call: the call of a module or function.
        direction: `forward`, `backward` or `recompute`.
    """
    running = call.running
    root, mode = running.root.name, running.mode
    if isinstance(call, FunctionCall):
        return _known(root, call.module_path, "", "function", mode, direction, call.name)
    return _known(root, call.path, call.type, "module", mode, direction)
