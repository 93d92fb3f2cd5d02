"""Names that are loaded when they are first used: who needs few of them does not wait for all."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def late(module: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """The `__getattr__` of a module whose names are loaded late.

    Args:
        module: the module's name.
        homes: for each name in it, the module of hookline that has it, and behind a colon its
            name there, if that is another; `"hooks.timer:ModuleTimerHook"`.
    """

    def load(name: str) -> object:
        if name not in homes:
            msg = f"module {module!r} has no attribute {name!r}"
            raise AttributeError(msg, name=name, obj=sys.modules[module])
        home, _, other = homes[name].partition(":")
        found = getattr(import_module(f"hookline.{home}"), other or name)
        setattr(sys.modules[module], name, found)
        return found

    return load
