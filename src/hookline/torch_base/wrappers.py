"""Modules that only hand their calls on to one inside: the names are those of the model in them.

`DistributedDataParallel`, `DataParallel`, FSDP, checkpoint wrappers and what `torch.compile` gives
are put around a model, or around parts of it, and have a name of their own in `named_modules()`.
Here they take no part in paths: a wrapper and the module inside share one. Nor are a wrapper's
calls those of another module: hooks see the call of the module inside. A compiled module is the
exception. The call of the module inside cannot be seen, so its wrapper's stands for it.
"""

from __future__ import annotations

from typing import Final

from torch import nn

from hookline.torch_base.private import COMPILED, SHARDED, WRAPPERS, children_of


class _Wrapped(dict[type, str]):
    """For each class of modules the name under which it holds what it wraps; `""` for others."""

    def __missing__(self, cls: type) -> str:
        found = next((WRAPPERS[_name(b)] for b in cls.__mro__ if _name(b) in WRAPPERS), "")
        self[cls] = found
        return found


class _HandsOn(dict[type, bool]):
    def __missing__(self, cls: type) -> bool:
        found = self[cls] = bool(_wrapped[cls]) and not is_compiled(cls)
        return found


class _ClassNames(dict[type, str]):
    def __missing__(self, cls: type) -> str:
        sharded = [base for base in cls.__mro__ if _name(base) == SHARDED]
        own = (base for base in cls.__mro__ if not any(issubclass(base, s) for s in sharded))
        found = self[cls] = next(own).__name__
        return found


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


_wrapped: Final = _Wrapped()

hands_on: Final = _HandsOn()
"""Whether modules of a class only hand their calls on, where hooks can see them."""

class_names: Final = _ClassNames()
"""The name of each class; `fully_shard` gives modules a class of their own, which does not count."""


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


def inside(module: nn.Module) -> nn.Module | None:
    """The module that a wrapper wraps; None for any other module."""
    name = _wrapped[type(module)]
    return children_of(module).get(name) if name else None


def innermost(module: nn.Module) -> nn.Module:
    """The module inside of all wrappers around it; itself, if it is none."""
    while (wrapped := inside(module)) is not None:
        module = wrapped
    return module
