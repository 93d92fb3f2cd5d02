"""Printing what a hook measured, as the tables of runs are printed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

from hookline.core.travel import MadeAnew


class Printed(MadeAnew):
    """A hook that gives rows, and prints tables of them."""

    name: str

    def rows(self) -> Sequence[Any]:
        """What was measured."""
        raise NotImplementedError  # each hook has rows of its own

    def _all_rows(self) -> Iterable[Any]:
        """All that there is to print."""
        return self.rows()

    def print_report(self, file: Any = None) -> None:
        """Print tables of what was measured, those of `hookline show`.

        Args:
            file: where to; standard output by default.
        """
        # Tables are a matter of reports, which stand on a floor above: they are loaded when asked.
        import_module("hookline.report.rows").print_rows(self.name, self._all_rows(), file)
