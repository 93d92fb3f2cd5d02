"""The bottom line of a terminal, kept for us while a program writes to the lines above it."""

from __future__ import annotations

import contextlib
import os
from typing import Final

_SAVE: Final = "\x1b7"
_RESTORE: Final = "\x1b8"
_WHOLE: Final = "\x1b[r"
_CLEAR: Final = "\x1b[2K"
# One line down and back: where the cursor is in the bottom line, all lines move up instead.
_MAKE_ROOM: Final = "\x1bD\x1b[A"
_FEWEST: Final = 4
"""In a terminal of fewer lines nothing is shown."""


class BottomLine:
    """Writes to the bottom line of a terminal, and leaves all else there alone.

    The other lines are made the region that scrolls (DECSTBM), so what the program prints moves
    within them. Each time the cursor is where it was before, with the colors that it had. The
    program's streams are not touched: what is written here goes to the terminal beside them.

    Args:
        terminal: the descriptor of the terminal; it is duplicated, so the program may redirect it.
    """

    def __init__(self, terminal: int) -> None:
        self._terminal: Final = os.dup(terminal)
        self._lines = 0

    @property
    def columns(self) -> int:
        """How wide the terminal is."""
        return os.get_terminal_size(self._terminal).columns

    def show(self, text: str) -> None:
        """Show some text, which must fit into the line.

        Raises:
            OSError: the terminal is gone.
        """
        before, self._lines = self._lines, os.get_terminal_size(self._terminal).lines
        # Where it was before nobody knows: terminals move their lines about when they are resized.
        parts = [] if before == self._lines else [_SAVE, _WHOLE, _RESTORE, _MAKE_ROOM]
        if self._lines >= _FEWEST:
            # The region is set each time: a program may reset its terminal.
            region, line = f"\x1b[1;{self._lines - 1}r", f"\x1b[{self._lines};1H"
            parts += [_SAVE, region, line, _CLEAR, text, "\x1b[0m", _RESTORE]
        self._write(parts)

    def close(self) -> None:
        """Clear the line, and give the whole terminal back."""
        with contextlib.suppress(OSError):
            if self._lines >= _FEWEST:
                self._write([_SAVE, _WHOLE, f"\x1b[{self._lines};1H", _CLEAR, _RESTORE])
        os.close(self._terminal)

    def _write(self, parts: list[str]) -> None:
        # At once, so that nothing of the program comes in between.
        os.write(self._terminal, "".join(parts).encode())
