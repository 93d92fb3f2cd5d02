"""Standing in the place of one of torch's functions while hooks are on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

_INHERITED: Final = object()
_REMEMBERED: Final = 16


class Stand:
    """One function of ours in the place of another.

    Attributes:
        original: what stood there.
        function: ours.
        active: False while nobody needs it. Where somebody has put theirs over ours, ours stays
            under it and only hands calls on.
    """

    __slots__ = ("_name", "_owner", "active", "function", "original")

    def __init__(self, owner: Any, name: str, original: Any) -> None:
        self._owner = owner
        self._name = name
        self.original: Final = original
        self.active = True
        self.function: Any = None

    def bound_to(self, cls: type) -> Callable[..., Any]:
        """The original of a class method, for a class."""
        if self.original is _INHERITED:
            return getattr(super(self._owner, cls), self._name)
        return self.original.__get__(None, cls)


class Patch:
    """Puts a function of ours in the place of `owner.name`, and takes out nothing but ours.

    Args:
        owner: a class or module of torch.
        name: the attribute; it may be inherited.
        make: makes our function for a stand.
    """

    def __init__(self, owner: Any, name: str, make: Callable[[Stand], Any]) -> None:
        self._owner = owner
        self._name = name
        self._make = make
        self._stand: Stand | None = None
        self._covered: deque[Stand] = deque(maxlen=_REMEMBERED)

    def _current(self) -> Any:
        return vars(self._owner).get(self._name, _INHERITED)

    def original_of(self, value: object) -> object:
        """What stands under a function of ours; anything else is given back."""
        stand = self._stand
        return stand.original if stand is not None and value is stand.function else value

    def install(self) -> None:
        """Put ours in place."""
        stand = self._stand = self._stand_over(self._current())
        stand.active = True
        setattr(self._owner, self._name, stand.function)

    def _stand_over(self, current: Any) -> Stand:
        for stand in self._covered:
            if current is stand.function:  # what covered it is gone
                self._covered.remove(stand)
                return stand
        # The same function object comes back each time, so that compiled code stays valid.
        if self._stand is not None and current is self._stand.original:
            return self._stand
        stand = Stand(self._owner, self._name, current)
        stand.function = self._make(stand)
        return stand

    def uninstall(self) -> None:
        """Put the original back; under somebody else's patch, ours becomes a pass-through.

        Does nothing where ours is not on.
        """
        stand = self._stand
        if stand is None or not stand.active:
            return
        current = self._current()
        if current is not stand.function:
            if current is not stand.original:
                self._covered.append(stand)
        elif stand.original is _INHERITED:
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, stand.original)
        stand.active = False
