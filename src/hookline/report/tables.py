"""Tables of times for the terminal: modules as a tree, functions by the module that calls them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import IO, Protocol, cast, runtime_checkable

from rich import box
from rich.console import Console, Group
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from hookline.core.records import TimeRow
from hookline.record.rows import FaultRow
from hookline.record.runs import RunData

NOTHING_CALLED = (
    "hookline: no module was called while hooks were on, so there is no time to show.\n"
    "Either no model ran, or it ran in another process, in a compiled region or in TorchScript."
)
"""What `print_time` says when there are no rows."""

# The least that tables in a file or a pipe, which have no width, may use; and in a terminal.
_WIDTH = 100
_NARROWEST = 80
# What a terminal too narrow for all columns does without, one step after another.
_NARROWER = (frozenset[str](), frozenset({"type"}), frozenset({"type", "self"}))
_DIRECTIONS = ("forward", "backward", "recompute")


@runtime_checkable
class Stream(Protocol):
    """What a report is printed to: a file, a `StringIO`, a notebook's output."""

    def write(self, text: str, /) -> object:
        """Take some text."""

    def flush(self) -> object:
        """Pass on what was taken."""


def print_run(run: RunData, file: Stream) -> None:
    """Print the tables of a run, and what went wrong in it."""
    print_time(run.rows(TimeRow), file)
    for row in run.rows(FaultRow):
        file.write(f"hookline: {row.text}\n")


def print_time(rows: Iterable[TimeRow], file: Stream) -> None:
    """Print the tables of `time_table`, or say that nothing was called.

    In a terminal that is too narrow, columns are left out and then long names folded; elsewhere
    every row stays one whole line.
    """
    rows = list(rows)
    console = Console(file=cast("IO[str]", file), highlight=False)
    if not rows:
        console.print(NOTHING_CALLED, markup=False, soft_wrap=True)
        return
    if console.is_terminal:
        tables = _fitting(rows, console)
        console.width = max(_NARROWEST, console.width)
    else:
        tables = time_table(rows)
        console.width = max(_WIDTH, _width(tables, console))
    console.print(tables)


def _fitting(rows: list[TimeRow], console: Console) -> Group:
    """The tables with as many columns as the console has room for."""
    steps = [time_table(rows, without=columns) for columns in _NARROWER]
    return next((tables for tables in steps if _width(tables, console) <= console.width), steps[-1])


def _width(tables: Group, console: Console) -> int:
    unlimited = console.options.update(max_width=1_000_000)
    return Measurement.get(console, unlimited, tables).maximum


def time_table(rows: Iterable[TimeRow], without: Collection[str] = ()) -> Group:
    """A table of modules for each root and mode, then one of functions for each mode.

    A module's share is its forward and backward, calls inside it included, of its root's; a
    function's that of all functions in its table.

    Args:
        rows: what was measured.
        without: names of columns to leave out.
    """
    rows = list(rows)
    modules = _split([row for row in rows if row.level == "module"], by=("root", "mode", "clock"))
    functions = _split([row for row in rows if row.level == "function"], by=("mode", "clock"))
    tables = [_module_table(part, without) for part in modules]
    tables += [_function_table(part, without) for part in functions]
    return Group(*tables)


@dataclass(slots=True)
class _Times:
    """What the rows of one line of a table add up to in one direction."""

    calls: int = 0
    own: float = 0.0
    total: float = 0.0


@dataclass(slots=True)
class _Line:
    """One line of a table; without rows it only holds others together."""

    label: str
    depth: int = 0
    type: str = ""
    times: dict[str, _Times] = field(default_factory=dict[str, _Times])
    inner: list[_Line] = field(default_factory=list["_Line"])

    def add(self, row: TimeRow) -> None:
        self.type = self.type or row.type
        times = self.times.setdefault(row.direction, _Times())
        times.calls += row.calls
        times.own += row.self_time
        times.total += row.total_time

    def walk(self) -> Iterator[_Line]:
        yield self
        for line in self.inner:
            yield from line.walk()

    @property
    def both_ways(self) -> float:
        """Forward and backward; what was recomputed is part of the backward that needed it."""
        return sum(self.times[way].total for way in _DIRECTIONS[:2] if way in self.times)


def _share(line: _Line, whole: float) -> str:
    return f"{line.both_ways / whole:.1%}" if whole and line.times else ""


def _title(what: str, row: TimeRow) -> str:
    device = "device " if row.clock == "device" else ""
    return f"{device}time by {what} ({row.mode})"


def _module_table(rows: Sequence[TimeRow], without: Collection[str]) -> Table:
    root = rows[0].root
    table = _Layout("module", _title(f"module: {root}", rows[0]), rows, without)
    whole = _whole(rows)
    for line in _tree(rows, root).walk():
        table.add(line, _share(line, whole))
    return table.table


def _whole(rows: Sequence[TimeRow]) -> float:
    """The forward and backward of a root.

    Where it has no row of its own, since only parts were watched: all that was measured in it.
    """
    roots = [row for row in rows if row.path == "" and row.direction != "recompute"]
    return sum(row.total_time for row in roots) if roots else sum(row.self_time for row in rows)


def _tree(rows: Sequence[TimeRow], root: str) -> _Line:
    """The modules by path, parents without rows included, in the order of the rows."""
    lines = {"": _Line(root)}

    def line_at(path: str) -> _Line:
        if path not in lines:
            above, _, label = path.rpartition(".")
            parent = line_at(above)
            lines[path] = _Line(label, parent.depth + 1)
            parent.inner.append(lines[path])
        return lines[path]

    for row in rows:
        line_at(row.path or "").add(row)
    return lines[""]


def _function_table(rows: Sequence[TimeRow], without: Collection[str]) -> Table:
    without = {*without, *_needless(rows)}
    table = _Layout("function", _title("function", rows[0]), rows, without)
    whole = sum(row.self_time for row in rows)
    for group in _groups(rows):
        table.head(_owner(group[0]))
        for line in _functions(group):
            table.add(line, _share(line, whole))
    return table.table


def _functions(rows: Iterable[TimeRow]) -> list[_Line]:
    """A line for each function, that which takes most time first."""
    lines: dict[str, _Line] = {}
    for row in rows:
        lines.setdefault(row.name, _Line(row.name, depth=1)).add(row)
    return sorted(lines.values(), key=lambda line: line.both_ways, reverse=True)


def _needless(rows: Sequence[TimeRow]) -> Iterator[str]:
    """Columns that tell nothing: most functions have no type, and do not nest."""
    if not any(row.type for row in rows):
        yield "type"
    if all(row.self_time == row.total_time for row in rows):
        yield "self"


def _groups(rows: Sequence[TimeRow]) -> list[list[TimeRow]]:
    """The rows by the module that calls; those outside any come last."""
    inside = [row for row in rows if row.path is not None]
    outside = [row for row in rows if row.path is None]
    groups: list[list[TimeRow]] = []
    for root in _split(inside, by=("root",)):
        place = _places([row.path or "" for row in root])
        groups += sorted(_split(root, by=("path",)), key=lambda group: place(group[0].path or ""))
    return groups + _split(outside, by=("root",))


def _places(paths: Iterable[str]) -> Callable[[str], list[int]]:
    """The place of each path in the tree of all: behind its parent, siblings as they come."""
    first: dict[str, int] = {}

    def place(path: str) -> list[int]:
        above = place(path.rpartition(".")[0]) if path else []
        return [*above, first.setdefault(path, len(first))]

    for path in paths:
        place(path)
    return place


def _owner(row: TimeRow) -> str:
    """The heading of the functions that one module calls."""
    if row.path is None:
        return "outside modules"
    return f"{row.root} {row.path}".rstrip()


class _Layout:
    """A table under construction: its columns, and how a line fills them.

    Directions in which nothing was measured have no column.
    """

    def __init__(
        self, first: str, title: str, rows: Sequence[TimeRow], without: Collection[str]
    ) -> None:
        measured = {row.direction for row in rows}
        self._ways = [way for way in _DIRECTIONS if way in measured]
        names = ["type", "calls"]
        for way in self._ways:
            names += [way] if way == "recompute" else [way, "self"]
        names.append("share")
        self._shown = [name not in without for name in names]
        self.table = Table(
            title=Text(title, style="bold"),
            title_justify="left",
            box=box.SIMPLE,
            padding=(0, 0, 0, 1),
        )
        self.table.add_column(first, overflow="fold")
        for name in compress(names, self._shown):
            number = name != "type"
            justify = "right" if number else "left"
            self.table.add_column(name, justify=justify, no_wrap=number, overflow="fold")

    def head(self, text: str) -> None:
        self.table.add_row(Text(text, style="bold"))

    def add(self, line: _Line, share: str) -> None:
        label = Text("  " * line.depth + line.label, style="" if line.times else "dim")
        times = [line.times.get(way) for way in self._ways]
        cells = [Text(line.type), next((str(each.calls) for each in times if each), "")]
        for way, each in zip(self._ways, times, strict=True):
            both = (_duration(each.total), _duration(each.own)) if each else ("", "")
            cells += both[:1] if way == "recompute" else both
        self.table.add_row(label, *compress([*cells, share], self._shown))


def _duration(seconds: float) -> str:
    """A time in the unit that suits it; set flush right, the points stand under each other."""
    for unit, size in (("µs", 1e-6), ("ms", 1e-3)):
        text = f"{seconds / size:.2f} {unit}"
        if len(text) <= len("999.99 ms"):
            return text
    return f"{seconds:.2f}  s"


def _split(rows: Iterable[TimeRow], by: tuple[str, ...]) -> list[list[TimeRow]]:
    """The rows that agree in some fields, in the order in which they first come."""
    parts: dict[tuple[object, ...], list[TimeRow]] = {}
    for row in rows:
        parts.setdefault(tuple(getattr(row, name) for name in by), []).append(row)
    return list(parts.values())
