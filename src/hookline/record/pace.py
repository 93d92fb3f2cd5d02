"""Work that comes again and again beside a program, and takes little of its time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Final

SHARE: Final = 20
"""A turn may take one part in so many of the time; where it takes longer, turns come later."""


def turns(over: threading.Event, interval: float, *, first: float) -> Iterator[None]:
    """One turn after another, until an event is set.

    Args:
        over: the event.
        interval: seconds between two turns, at least.
        first: seconds before the first.

    Example:
        >>> over = threading.Event()
        >>> for turn, _ in enumerate(turns(over, 0.001, first=0.0)):
        ...     if turn == 2:
        ...         over.set()
        >>> turn
        2
    """
    pause = first
    while not over.wait(pause):
        began = time.perf_counter()
        yield
        pause = max(interval, SHARE * (time.perf_counter() - began))
