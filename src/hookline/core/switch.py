"""Something that is on exactly while somebody needs it."""

from __future__ import annotations

import threading
from collections.abc import Callable

# Reentrant, since the garbage collector may drop a registry while the lock is held.
lock = threading.RLock()
"""Guards every change of what is registered."""


def _nothing() -> None:
    pass


class Switch:
    """Knows its holders: the first turns it on, the last turns it off.

    Example:
        >>> switch = Switch()
        >>> switch.connect(on=lambda: print("on"), off=lambda: print("off"))
        >>> switch.hold("a")
        ... switch.hold("b")
        ... switch.release("a")
        ... switch.release("b")
        on
        off
    """

    __slots__ = ("_holders", "_off", "_on")

    def __init__(self) -> None:
        self._holders: set[int] = set()
        self._on: Callable[[], None] = _nothing
        self._off: Callable[[], None] = _nothing

    def connect(self, on: Callable[[], None], off: Callable[[], None]) -> None:
        """Say what turning on and off means; `on` may raise, then nobody holds the switch."""
        self._on = on
        self._off = off

    def __bool__(self) -> bool:
        return bool(self._holders)

    def hold(self, owner: object) -> None:
        """Need it from now on."""
        with lock:
            if not self._holders:
                self._on()
            self._holders.add(id(owner))

    def release(self, owner: object) -> None:
        """Need it no longer; does nothing for one that does not hold it."""
        with lock:
            if id(owner) in self._holders:
                self._holders.remove(id(owner))
                if not self._holders:
                    self._off()

    def reset(self) -> None:
        """Forget all holders, as a forked child must."""
        with lock:
            if self._holders:
                self._holders.clear()
                self._off()
