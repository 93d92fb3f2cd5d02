"""Where text is printed to."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any, Protocol, runtime_checkable

print_tables: Callable[[str, Iterable[Any], str, Any], None]
"""Prints the rows of a hook, given its name, them, the end of a sentence that says why there may be
none, and a file, or None for standard output.

Tables are a matter of reports, which stand on a floor above: the top of the package, which knows
all floors, puts it here.
"""


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
