"""What becomes of hooks and handles in a copy or pickle of that which holds them.

Nothing that is registered travels, and nothing of ours makes the copy fail: see the two classes.
What was captured or recorded is data, and travels as such.
"""

from __future__ import annotations

from typing import Any, Self


class StaysHere:
    """Belongs to a registration in this process: elsewhere, None stands in its place.

    A model may well keep a handle as an attribute; its copies and pickles have no hooks, so there
    is nothing that theirs could remove.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()


class MadeAnew:
    """Comes elsewhere as it was made: with its options, registered nowhere, nothing measured yet.

    What it measured, and what it holds to do so, belongs to calls and threads of this process.
    """

    _options: tuple[tuple[Any, ...], dict[str, Any]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Call the class what users call it, in errors and pickles: by where they import it."""
        super().__init_subclass__(**kwargs)
        for level in ("Module", "Function"):
            if cls.__module__.startswith("hookline.hooks.") and cls.__name__.startswith(level):
                cls.__module__ = f"hookline.{level.lower()}_hooks"
                cls.__name__ = cls.__qualname__ = cls.__name__.removeprefix(level)

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Remember the options."""
        new = super().__new__(cls)
        new._options = args, kwargs
        return new

    def __reduce__(self) -> tuple[Any, ...]:
        name = vars(self).get("name")
        return _made, (type(self), *self._options), None if name is None else {"name": name}


def _made(cls: type[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return cls(*args, **kwargs)
