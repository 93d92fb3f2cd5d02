"""Where text is printed to."""

from __future__ import annotations

import sys
from typing import Protocol, runtime_checkable


@runtime_checkable
class Writable(Protocol):
    """What text can be printed to."""

    def write(self, text: str, /) -> object:
        """Take some text."""


def print_to(file: Writable | None, text: str) -> None:
    """Print lines at once; to what standard output is now, where no file is given."""
    out = sys.stdout if file is None else file
    out.write(text)
    flush = getattr(out, "flush", None)
    if flush is not None:
        flush()
