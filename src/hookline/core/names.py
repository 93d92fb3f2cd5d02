"""How listings and errors call a hook."""

from __future__ import annotations

import functools


def hook_name(hook: object) -> str:
    """A short name: the qualified name of a function, else the class.

    Example:
        >>> hook_name(len)
        'len'
    """
    if isinstance(hook, functools.partial):
        return f"partial({hook_name(hook.func)})"
    name = getattr(hook, "__qualname__", None)
    if isinstance(name, str):
        return name
    return f"{type(hook).__qualname__} object"
