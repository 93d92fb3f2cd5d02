"""What the registered hooks ask of the engine beyond the plain events."""

from __future__ import annotations

from typing import Final

from hookline.core.entry import Entry


class Demand:
    """How many registered hooks need a costly service; with none, the engine leaves it out."""

    __slots__ = ("backward", "clock", "modes", "version")

    def __init__(self) -> None:
        self.clock = 0
        """Hooks that read the thread's clock."""
        self.backward = 0
        """Hooks that run in the backward."""
        self.modes = 0
        """Hooks with a dispatch mode."""
        self.version = 0
        """Changes with every registration and removal: what was looked up may be out of date."""

    def change(self, entry: Entry, by: int) -> None:
        """Count an entry in (`by=1`) or out (`by=-1`)."""
        self.version += 1
        if entry.timed:
            self.clock += by
        if entry.mode is not None:
            self.modes += by
        if entry.watches_backward:
            self.backward += by


demand: Final = Demand()
