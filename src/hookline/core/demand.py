"""What the registered hooks ask of the engine beyond the plain events."""

from __future__ import annotations

from typing import Final

from hookline.core.entry import Entry


class Demand:
    """How many registered hooks need a costly service; with none, the engine leaves it out."""

    __slots__ = ("backward", "clock")

    def __init__(self) -> None:
        self.clock = 0
        """Hooks that read the thread's clock."""
        self.backward = 0
        """Hooks that run in the backward."""

    def change(self, entry: Entry, by: int) -> None:
        """Count an entry in (`by=1`) or out (`by=-1`)."""
        self.clock += by * entry.timed
        self.backward += by * entry.watches_backward


demand: Final = Demand()
