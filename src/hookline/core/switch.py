"""Something that is on exactly while somebody needs it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from importlib import import_module

# Reentrant, since the garbage collector may drop a registry while the lock is held.
lock = threading.RLock()
"""Guards every change of what is registered."""

# Nobody else holds it while the process forks, or it would be held in the child for ever.
os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)


def _nothing() -> None:
    pass


class Switch:
    """Knows its holders: the first turns it on, the last turns it off.

    Args:
        loads: a module to import before it is first held. What it turns on stands on a floor
            above, which nothing here may import; that module connects itself.

    Example:
        >>> switch = Switch()
        >>> switch.connect(on=lambda: print("on"), off=lambda: print("off"))
        >>> switch.hold("a")
        on
        >>> switch.hold("b")
        >>> switch.release("a")
        >>> switch.release("b")
        off
    """

    __slots__ = ("_holders", "_loads", "_off", "_on")

    def __init__(self, loads: str | None = None) -> None:
        self._loads = loads
        self._holders: set[int] = set()
        self._on: Callable[[], None] = _nothing
        self._off: Callable[[], None] = _nothing

    def connect(self, on: Callable[[], None], off: Callable[[], None]) -> None:
        """Say what turning on and off means.

        Where `on` raises, `off` undoes what it did, and nobody holds the switch. Where `off` was
        interrupted, it is called again: it does what is left to do.
        """
        self._loads = None
        self._on = on
        self._off = off

    def __bool__(self) -> bool:
        return bool(self._holders)

    def hold(self, owner: object) -> None:
        """Need it from now on."""
        with lock:
            if self._loads is not None:
                import_module(self._loads)
            first = not self._holders
            try:
                self._holders.add(id(owner))
                if first:
                    self._on()
            except BaseException:  # Ctrl-C may come anywhere
                try:
                    if first:
                        self._off()
                finally:
                    self._holders.discard(id(owner))
                raise

    def release(self, owner: object) -> None:
        """Need it no longer; does nothing for one that does not hold it."""
        with lock:
            if id(owner) in self._holders:
                if len(self._holders) == 1:
                    self._off()
                self._holders.discard(id(owner))

    def held(self) -> Held:
        """Need it inside of a `with`: what is set up there finds it on, and turns it on once."""
        return Held(self)

    def reset(self) -> None:
        """Forget all holders, as a forked child must."""
        with lock:
            if self._holders:
                self._holders.clear()
                self._off()


class Held:
    """Holds a switch inside of a `with`; wherever Ctrl-C comes, no longer than it lives."""

    __slots__ = ("_switch",)

    def __init__(self, switch: Switch) -> None:
        self._switch = switch

    def __enter__(self) -> None:
        self._switch.hold(self)

    def __exit__(self, *_: object) -> None:
        self._switch.release(self)

    def __del__(self) -> None:
        if hasattr(self, "_switch"):  # Ctrl-C, or a compiler, may leave it half made
            self._switch.release(self)
