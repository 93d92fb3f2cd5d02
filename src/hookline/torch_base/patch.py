"""Standing in the place of one of torch's functions while hooks are on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final


class Stand:
    """One function of ours in the place of another.

    Attributes:
        original: the function that stood there.
        function: ours.
        active: False for good once somebody has put theirs over ours when we left: then ours
            stays under it and only hands calls on.
    """

    __slots__ = ("active", "function", "original")

    def __init__(self, original: Callable[..., Any]) -> None:
        self.original: Final = original
        self.active = True
        self.function: Callable[..., Any] = original


class Patch:
    """Puts a function of ours in the place of `owner.name`, and takes out nothing but ours.

    Args:
        owner: a class or module of torch.
        name: the attribute.
        make: makes our function for a stand.
    """

    def __init__(self, owner: Any, name: str, make: Callable[[Stand], Callable[..., Any]]) -> None:
        self._owner = owner
        self._name = name
        self._make = make
        self._stand: Stand | None = None

    def install(self) -> None:
        """Put ours in place."""
        current = getattr(self._owner, self._name)
        # The same function object comes back each time, so that compiled code stays valid.
        if self._stand is None or self._stand.original is not current:
            self._stand = Stand(current)
            self._stand.function = self._make(self._stand)
        setattr(self._owner, self._name, self._stand.function)

    def uninstall(self) -> None:
        """Put the original back; under somebody else's patch, ours becomes a pass-through."""
        stand = self._stand
        assert stand is not None
        if getattr(self._owner, self._name) is stand.function:
            setattr(self._owner, self._name, stand.original)
        else:
            stand.active = False
            self._stand = None
