"""Printing what a hook measured, as the tables of runs are printed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any, Final

from hookline.core.travel import MadeAnew

NOTHING: Final = ": no call was measured"
"""Why there is nothing to print, where nothing better is known."""


def print_tables(name: str, rows: Iterable[Any], empty: str, file: Any) -> None:
    """Print rows as `hookline show` does.

    Args:
        name: that of the hook that gives them.
        rows: the rows.
        empty: why there may be none, as the end of a sentence.
        file: where to; standard output if it is None.
    """
    # Tables are a matter of reports, which stand on a floor above: they are loaded when asked.
    import_module("hookline.report.rows").print_rows(name, rows, empty, file)


class Printed(MadeAnew):
    """A hook that gives rows, and prints tables of them."""

    name: str

    def rows(self) -> Sequence[Any]:
        """What was measured."""
        raise NotImplementedError  # each hook has rows of its own

    def _all_rows(self) -> Iterable[Any]:
        """All that there is to print."""
        return self.rows()

    def _why_empty(self) -> str:
        """Why there may be nothing to print, as the end of a sentence."""
        return NOTHING

    def print_report(self, file: Any = None) -> None:
        """Print tables of what was measured, those of `hookline show`.

        Args:
            file: where to; standard output by default.
        """
        print_tables(self.name, self._all_rows(), self._why_empty(), file)
