"""What the registered hooks ask of the engine beyond the plain events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, runtime_checkable

from hookline.core.entry import Entry


@runtime_checkable
class Aim(Protocol):
    """What a hook object was put on by name: a module, or functions that it calls."""

    @property
    def path(self) -> str:
        """The path or address; empty if not known."""
        ...

    @property
    def key(self) -> Any:
        """A weak reference to the module."""
        ...

    @property
    def function(self) -> object:
        """Which of its functions are meant; None for the module, or for all of them."""
        ...

    @property
    def fired(self) -> bool:
        """Whether it ran for these functions."""
        ...


def _unconnected(callback: Callable[..., object], *arguments: Any) -> object:
    return callback(*arguments)


class Demand:
    """How many registered hooks need a costly service; with none, the engine leaves it out."""

    __slots__ = ("aims", "apart", "backward", "clock", "modes", "version")

    def __init__(self) -> None:
        self.clock = 0
        """Hooks that read the thread's clock."""
        self.backward = 0
        """Hooks that run in the backward."""
        self.modes = 0
        """Hooks with a dispatch mode."""
        self.apart: Callable[..., object] = _unconnected
        """Calls a callback with these modes off; connected by the floor that has them."""
        self.version = 0
        """Changes with every registration and removal: what was looked up may be out of date."""
        self.aims: dict[Entry, Sequence[Aim]] = {}
        """What hooks were put on by name, until the first pass shows whether they are reached."""

    # Once they have begun, these run through: Python looks for Ctrl-C at calls, and there are none.

    def admit(self, entry: Entry) -> None:
        """Count an entry in, unless it is."""
        if not entry.counted:
            entry.counted = True
            self.version += 1
            self.clock += entry.timed
            self.modes += entry.mode is not None
            self.backward += entry.watches_backward

    def dismiss(self, entry: Entry) -> None:
        """Count an entry out, if it is in; it is not called any more."""
        entry.alive = False
        if entry in self.aims:
            del self.aims[entry]
        if entry.counted:
            entry.counted = False
            self.version += 1
            self.clock -= entry.timed
            self.modes -= entry.mode is not None
            self.backward -= entry.watches_backward


demand: Final = Demand()
