"""A thread's clock that stands still while hooks run.

Hooks measure each other: a slow hook inside a timed call would count as the call's own time.
The engine therefore freezes the thread's clock when an event begins and lets it go on from the
same reading when the event is over. A timer reads `now` and sees the program's time only.
"""

from __future__ import annotations

from itertools import count
from time import perf_counter_ns
from typing import Final

_numbers: Final = count()


class Clock:
    """The time of one thread in nanoseconds, without what hooks took.

    Example:
        >>> clock = Clock()
        >>> clock.freeze()
        >>> before = clock.now
        >>> clock.thaw()
        >>> clock.freeze()
        >>> clock.now >= before
        True
    """

    __slots__ = ("_hidden", "depth", "now", "number")

    def __init__(self) -> None:
        self.depth = 0
        """How often it is frozen; to be put back by who froze it, whatever interrupts a `thaw`."""
        self._hidden = 0
        self.now = 0
        """The reading at the last freeze; the time of the event that runs."""
        self.number = next(_numbers)
        """Which clock it is."""

    def freeze(self) -> None:
        """Stop the clock; may be nested."""
        if not self.depth:
            self.now = perf_counter_ns() - self._hidden
        self.depth += 1

    def thaw(self) -> None:
        """Undo one `freeze`; the last one lets the clock go on from where it stood."""
        self.depth -= 1
        if not self.depth:
            self._hidden = perf_counter_ns() - self.now
