"""What the hooks that measure have in common: rows, and tables of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from hookline.core import stream
from hookline.core.travel import MadeAnew


class Meter(Protocol):
    """What a hook measures with."""

    def rows(self) -> list[Any]:
        """What was measured so far."""
        ...

    def reset(self) -> None:
        """Forget it; calls that run are not disturbed."""
        ...


RowT = TypeVar("RowT")
MeterT = TypeVar("MeterT", bound=Meter)


NOTHING: Final = ": no call was measured"
"""Why there is nothing to print, where nothing better is known."""


class Measuring(MadeAnew, Generic[RowT, MeterT]):
    """A hook that gives what it measured as rows, and prints tables of them."""

    name: str
    _meter: MeterT

    def rows(self) -> list[RowT]:
        """What was measured, a row for each module or function, mode and direction."""
        return self._meter.rows()

    def all_rows(self) -> Sequence[Any]:
        """All that was measured, where there are rows of several kinds."""
        return self.rows()

    def reset(self) -> None:
        """Forget what was measured."""
        self._meter.reset()

    def _why_empty(self) -> str:
        """Why there may be nothing to print, as the end of a sentence."""
        return NOTHING

    def print_report(self, file: Any = None) -> None:
        """Print tables of what was measured, those of `hookline show`.

        Args:
            file: where to; standard output by default.
        """
        stream.print_tables(self.name, self.all_rows(), self._why_empty(), file)
