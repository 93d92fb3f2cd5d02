"""How hooks, and what is in a model, are called in texts."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any


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


def joined(path: str, name: str) -> str:
    """The path of what goes by a name in what is at a path.

    Example:
        >>> joined("encoder", "weight"), joined("", "weight")
        ('encoder.weight', 'weight')
    """
    return f"{path}.{name}" if path else name


def around(path: str) -> Iterator[str]:
    """The paths of what is around what is at a path, the innermost first.

    Example:
        >>> list(around("encoder.layers.0"))
        ['encoder.layers', 'encoder', '']
    """
    while path:
        path = path.rpartition(".")[0]
        yield path


def shortened(texts: Iterable[str], most: int = 8) -> str:
    """A list in a text, only the first of it where it is long.

    Example:
        >>> shortened(["a", "b", "c"], most=2)
        'a, b and 1 more'
    """
    texts = list(texts)
    shown = ", ".join(texts[:most])
    return f"{shown} and {len(texts) - most} more" if len(texts) > most else shown


def where(row: Any) -> str:
    """The name of what a row is of, below its root.

    Example:
        >>> from hookline.core.records import Silent
        >>> where(Silent("head", "Linear", "fused", "", (), "Net"))
        'head'
    """
    name: str = getattr(row, "name", "")
    if row.path is None:
        return f"{name} (outside modules)" if name else "outside modules"
    return f"{row.path}:{name}" if name else row.path or row.root or "the model"


def full_name(row: Any) -> str:
    """The name of what a row is of, behind that of its root.

    Example:
        >>> from hookline.core.records import Silent
        >>> full_name(Silent("head", "Linear", "fused", "", (), "Net"))
        'Net head'
    """
    if row.path is None:
        return where(row)
    name = getattr(row, "name", "")
    place = f"{row.root} {row.path}".strip()
    return f"{place}:{name}" if name else place or where(row)
