"""A table as plain data: its columns, and lines that may stand under one another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    name: str
    """What it is called where a table is sorted by it."""
    show: Callable[[Any], str] = str
    """How a value is written; None is written as nothing."""
    number: bool = True
    """Whether it holds numbers: these stand flush right and are never folded."""
    spare: int = 0
    """A narrow terminal does without the columns of step 1, then without those of step 2, ..."""
    heading: str = ""
    """What stands above it, where that is not its name."""


@dataclass(slots=True)
class Line:
    """A line of a table."""

    label: str
    """What stands in the first column, under the lines above it."""
    values: Sequence[Any] = ()
    """A value for each column; none where the line only holds others together."""
    name: str = ""
    """What stands in the first column where the line stands alone; the label by default."""
    weight: Any = 0.0
    """How much it matters: of a long table the lightest lines are left out."""
    above: Line | None = None
    """The line that it stands under."""
    style: str = ""
    """A style of rich for the label."""

    @property
    def depth(self) -> int:
        """How many lines it stands under."""
        return 0 if self.above is None else self.above.depth + 1

    def with_above(self) -> Iterator[Line]:
        """The line, and those that it stands under."""
        yield self
        if self.above is not None:
            yield from self.above.with_above()


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table.

    Example:
        >>> lines = [Line("a", [3], weight=3), Line("b", [9], weight=9)]
        >>> sheet = Sheet("numbers", "name", [Column("n")], lines)
        >>> [line.label for line in sheet.sorted_by("n").lines], sheet.cut(1).left_out
        (['b', 'a'], 1)
    """

    title: str
    """What it shows."""
    first: str
    """The heading of the labels."""
    columns: Sequence[Column]
    """The other columns."""
    lines: Sequence[Line]
    """The lines, each behind the one that it stands under."""
    left_out: int = 0
    """How many lines were cut."""

    @property
    def names(self) -> list[str]:
        """The names of the columns, that of the labels first."""
        return [self.first, *(column.name for column in self.columns)]

    def cut(self, limit: int | None) -> Sheet:
        """The table with its heaviest lines only, and those that they stand under.

        Args:
            limit: how many lines it may have; None for all.
        """
        if limit is None or len(self.lines) <= limit:
            return self
        kept: dict[int, Line] = {}
        for line in sorted(self._full, key=lambda line: line.weight, reverse=True):
            needed = {id(each): each for each in line.with_above()}
            if len(kept | needed) > limit:
                break
            kept |= needed
        lines = [line for line in self.lines if id(line) in kept]
        return replace(self, lines=lines, left_out=len(self.lines) - len(lines))

    def sorted_by(self, column: str) -> Sheet:
        """The lines without their tree, largest numbers first; by a column of text, from A to Z."""
        lines = [
            replace(line, label=line.name or line.label, above=None, style="")
            for line in self._full
        ]
        place = self.names.index(column) - 1
        if place < 0:
            lines.sort(key=lambda line: line.label)
        else:
            is_number = self.columns[place].number
            unknown = [line for line in lines if line.values[place] is None]
            lines = [line for line in lines if line.values[place] is not None]
            lines.sort(key=lambda line: line.values[place], reverse=is_number)
            lines += unknown
        # Where lines are left out, these are the last.
        weighed = [replace(line, weight=-place) for place, line in enumerate(lines)]
        return replace(self, lines=weighed)

    def tidied(self) -> Sheet:
        """The table without columns in which nothing stands."""
        used = [
            any(line.values[place] not in (None, "") for line in self._full)
            for place in range(len(self.columns))
        ]
        return self._only(used)

    def narrowed(self, step: int) -> Sheet:
        """The table without the columns that can be spared, up to a step."""
        return self._only([not 0 < column.spare <= step for column in self.columns])

    def _only(self, shown: Sequence[bool]) -> Sheet:
        # A line stands in its own tree, so that all of a table's are made anew together.
        new: dict[int, Line] = {}
        for line in self.lines:
            above = None if line.above is None else new[id(line.above)]
            values = list(compress(line.values, shown))
            new[id(line)] = replace(line, values=values, above=above)
        return replace(self, columns=list(compress(self.columns, shown)), lines=list(new.values()))

    @property
    def _full(self) -> list[Line]:
        """The lines that have values."""
        return [line for line in self.lines if line.values]


def split(rows: Iterable[Any], by: Sequence[str]) -> list[list[Any]]:
    """The rows that agree in some fields, in the order in which they first come."""
    parts: dict[tuple[object, ...], list[Any]] = {}
    for row in rows:
        parts.setdefault(tuple(getattr(row, name) for name in by), []).append(row)
    return list(parts.values())
