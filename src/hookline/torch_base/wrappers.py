"""Modules that only hand their calls on to one inside: the names are those of the model in them.

`DistributedDataParallel`, `DataParallel`, FSDP, checkpoint wrappers and what `torch.compile` gives
are put around a model, or around parts of it, and have a name of their own in `named_modules()`.
Here they take no part in paths: a wrapper and the module inside share one. Nor are a wrapper's
calls those of another module: hooks see the call of the module inside. A compiled module is the
exception. The call of the module inside cannot be seen, so its wrapper's stands for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

from torch import nn

from hookline.torch_base.private import (
    APART,
    COMPILED,
    COMPILERS_OWN,
    ORIGINAL,
    SHARDED,
    WRAPPERS,
    children_of,
)

_T = TypeVar("_T")


class ByClass(dict[type, _T]):
    """What is found out about each class, once.

    Classes made at run time are forgotten with the last that uses them: one that `parametrize`
    made leads to its module.
    """

    def __init__(self, find: Callable[[type], _T]) -> None:
        super().__init__()
        self._find = find
        self._passing: WeakKeyDictionary[type, _T] = WeakKeyDictionary()

    def __missing__(self, cls: type) -> _T:
        found = self._passing.get(cls)
        if found is None:
            found = self._find(cls)
            lasting = getattr(sys.modules.get(cls.__module__), cls.__qualname__, None) is cls
            kept = self if lasting else self._passing
            kept[cls] = found
        return found


def _find_wrapped(cls: type) -> str:
    return next((WRAPPERS[_name(b)] for b in cls.__mro__ if _name(b) in WRAPPERS), "")


def _find_hands_on(cls: type) -> bool:
    made_by_compiler = any(_name(base) == COMPILERS_OWN for base in cls.__mro__)
    return made_by_compiler or (bool(_wrapped[cls]) and not is_compiled(cls))


def _find_class_name(cls: type) -> str:
    sharded = [base for base in cls.__mro__ if _name(base) == SHARDED]
    own = (base for base in cls.__mro__ if not any(issubclass(base, s) for s in sharded))
    return next(own).__name__


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


_wrapped: Final = ByClass(_find_wrapped)
"""For each class of modules the name under which it holds what it wraps; `""` for others."""

hands_on: Final = ByClass(_find_hands_on)
"""Whether modules of a class only hand their calls on, where hooks can see them; so do the modules
that the compiler makes of its graphs."""

class_names: Final = ByClass(_find_class_name)
"""The name of each class; the classes that `fully_shard` gives to modules do not count."""


def type_name(cls: type, module: nn.Module | None) -> str:
    """What a module is called in tables of types; a compiled module as the one inside.

    Args:
        cls: its class.
        module: the module, if it is still there.
    """
    if _wrapped[cls] and module is not None:
        cls = type(innermost(module))
    return class_names[cls]


def is_compiled(cls: type) -> bool:
    """Whether a class is that of what `torch.compile` makes of a module."""
    return any(_name(base) == COMPILED for base in cls.__mro__)


is_region: Final = ByClass(is_compiled)
"""The same, once found out for each class."""


def runs_compiled(module: nn.Module) -> bool:
    """Whether a call of a module runs what `torch.compile` made: of it, or of its `forward`."""
    in_place = getattr(module, "_compiled_call_impl", None) is not None
    forward = module.forward
    decorated = hasattr(forward, ORIGINAL) and not hasattr(forward, APART)
    return in_place or is_region[type(module)] or decorated


def inside(module: nn.Module) -> nn.Module | None:
    """The module that a wrapper wraps; None for any other module."""
    name = _wrapped[type(module)]
    return children_of(module).get(name) if name else None


def innermost(module: nn.Module) -> nn.Module:
    """The module inside of all wrappers around it; itself, if it is none."""
    while (wrapped := inside(module)) is not None:
        module = wrapped
    return module
