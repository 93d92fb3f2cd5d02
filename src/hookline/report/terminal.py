"""Tables in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from importlib import import_module
from typing import IO, Final, Protocol, cast, runtime_checkable

from rich import box
from rich.console import Console, Group
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from hookline.core.records import TimeRow
from hookline.core.stream import Writable
from hookline.errors import HookValueError
from hookline.record.merge import first_line, remarks
from hookline.record.rows import FaultRow, PassRow
from hookline.record.runs import RunData
from hookline.report.tables import TABLES
from hookline.report.tables.sheet import Sheet
from hookline.report.tables.units import plural

NOTHING_CALLED: Final = (
    "hookline: no module was called while hooks were on, so there is nothing to show.\n"
    "Either no model ran, or it ran in another process, in a compiled region or in TorchScript."
)
"""What is printed of a run in which nothing was called."""

NOTHING_WRITTEN: Final = (
    "hookline: no call of a module was written to its file yet, so there is nothing to show."
)
"""What is printed of a run that goes on, or was killed, before the first call was written."""

LINES: Final = 60
"""So many lines of a table are shown, where not all are asked for; fewer of many tables."""

_ALL_LINES = 360
_FEWEST = 12

# Loaded with this file: at the end of a program, when its report is printed, modules of the
# program may stand in the way of those that these import.
_SHEETS: Final[dict[str, Callable[[RunData], Iterable[Sheet]]]] = {
    name: import_module(f"hookline.report.tables.{name}").sheets for name in TABLES
}

# The least that tables in a file or a pipe, which have no width, may use; and in a terminal.
_WIDTH = 100
_NARROWEST = 80


@runtime_checkable
class Stream(Writable, Protocol):
    """What a report is printed to: a file, a `StringIO`, a notebook's output."""

    def flush(self) -> object:
        """Pass on what was taken."""


def print_run(
    run: RunData,
    file: Stream | None = None,
    *,
    limit: int | None = LINES,
    tables: Collection[str] = (),
    sort: str = "",
) -> None:
    """Print what a run has: a head, its tables, and at last what went wrong.

    Args:
        run: the run.
        file: where to; stdout by default.
        limit: how many lines a table may have, if there are few tables; None for all.
        tables: only these of `TABLES`, without head; all by default.
        sort: the column that tables are sorted by, those that have it.

    Raises:
        HookValueError: there is no such table, or no table has such a column.
    """
    console = console_for(file)
    chosen = _chosen(tables)
    sheets = [sheet for name in chosen for sheet in _SHEETS[name](run)]
    if sort:
        sheets = _sorted(sheets, sort)
    if limit is not None and sheets:
        limit = min(limit, max(_FEWEST, _ALL_LINES // len(sheets)))
    cut = [sheet.cut(limit) for sheet in sheets]
    if not tables:
        print_lines(_head(run), console)
    for sheet in cut:
        print_sheet(sheet, console)
    if not tables:
        print_lines((f"hookline: {text}" for text in _troubles(run)), console)
    else:
        print_lines(
            (_why_empty(run, name) for name in chosen if not any(_SHEETS[name](run))), console
        )
    left_out = sum(sheet.left_out for sheet in cut)
    if left_out:
        print_lines([f"hookline: {_how_to_see(run, left_out)}"], console)


def sheets_of(run: RunData) -> Iterator[Sheet]:
    """All tables that a run has."""
    return (sheet for name in TABLES for sheet in _SHEETS[name](run))


def print_sheet(table: Sheet, console: Console) -> None:
    """Print a table.

    In a terminal that is too narrow, columns are left out and then long names folded; elsewhere
    every row stays one whole line.
    """
    width = console.width
    if console.is_terminal:
        table = _fitting(table, console)
        console.width = max(_NARROWEST, width)
    else:
        console.width = max(_WIDTH, _width(table, console))
    console.print(draw(table))
    console.width = width


def print_sheets(tables: Iterable[Sheet], file: Stream | None = None) -> None:
    """Print tables.

    Args:
        tables: the tables.
        file: where to; stdout by default.
    """
    console = console_for(file)
    for table in tables:
        print_sheet(table, console)


def print_lines(lines: Iterable[str], console: Console | None = None) -> None:
    """Print text as it is, whatever its width."""
    console = console or console_for()
    for line in lines:
        console.print(Text(line), soft_wrap=True)


def draw(sheet: Sheet) -> Group:
    """A table as rich draws it."""
    table = Table(box=box.SIMPLE, padding=(0, 0, 0, 1))
    table.add_column(sheet.first, overflow="fold")
    for column in sheet.columns:
        justify = "right" if column.number else "left"
        heading = column.heading or column.name
        table.add_column(heading, justify=justify, no_wrap=column.number, overflow="fold")
    for line in sheet.lines:
        values = zip(sheet.columns, line.values, strict=False)
        cells = [Text("" if value is None else column.show(value)) for column, value in values]
        table.add_row(Text("  " * line.depth + line.label, style=line.style), *cells)
    parts = [Text(sheet.title, style="bold"), table]
    if sheet.left_out:
        parts.append(Text(f"  … and {plural(sheet.left_out, 'more line')}\n", style="dim"))
    return Group(*parts)


def console_for(file: Stream | None = None) -> Console:
    """What prints to a file; to stdout by default."""
    file = sys.stdout if file is None else file
    return Console(file=cast("IO[str]", file), highlight=False, emoji=False)


def _fitting(sheet: Sheet, console: Console) -> Sheet:
    """The table with as many columns as the console has room for."""
    steps = sorted({column.spare for column in sheet.columns} | {0})
    narrowed = [sheet.narrowed(step) for step in steps]
    fitting = (each for each in narrowed if _width(each, console) <= console.width)
    return next(fitting, narrowed[-1])


def _width(sheet: Sheet, console: Console) -> int:
    unlimited = console.options.update(max_width=1_000_000)
    return Measurement.get(console, unlimited, draw(sheet)).maximum


def _chosen(tables: Collection[str]) -> Collection[str]:
    for name in tables:
        if name not in TABLES:
            msg = f"{name!r} is no table; choose from {', '.join(TABLES)}"
            raise HookValueError(msg)
    return [name for name in TABLES if name in tables] if tables else TABLES


def _sorted(sheets: list[Sheet], column: str) -> list[Sheet]:
    """The tables, sorted where they have the column."""
    having = {id(sheet) for sheet in sheets if column in sheet.names}
    if sheets and not having:
        known = dict.fromkeys(name for sheet in sheets for name in sheet.names)
        msg = f"{column!r} is no column of these tables; choose from {', '.join(known)}"
        raise HookValueError(msg)
    return [sheet.sorted_by(column) if id(sheet) in having else sheet for sheet in sheets]


def _head(run: RunData) -> Iterator[str]:
    """What the run was, in a few lines; or that there is nothing to tell."""
    passes: dict[str, list[PassRow]] = {}
    for row in run.rows(PassRow):
        passes.setdefault(row.root, []).append(row)
    info = run.info
    nothing = not passes and not run.rows(TimeRow)
    if nothing and info.state != "running":
        yield NOTHING_CALLED
        return
    steps = f", {plural(info.steps, 'optimizer step')}" if info.steps else ""
    ranks = f", rank {info.rank} of {info.ranks}" if info.ranks > 1 else ""
    program = " ".join(info.program) or "run"
    yield f"{program}: {run.ranks[0].state} after {info.seconds:.1f} s{steps}{ranks}"
    if nothing:
        yield NOTHING_WRITTEN
        return
    if info.error:
        yield first_line(info.error)
    for root, rows in passes.items():
        modes = ", ".join(f"{row.passes:,} {row.mode}" for row in rows)
        yield f"{root}: {'pass' if sum(r.passes for r in rows) == 1 else 'passes'}: {modes}"
    yield ""


def _troubles(run: RunData) -> Iterator[str]:
    yield from remarks(run)
    for row in run.rows(FaultRow):
        yield row.text


_EMPTY: Final = {
    "times": ("--time", "no module or function was called"),
    "memory": ("--memory", "no module or function was called"),
    "flops": ("--flops", "no operator that does matrix work was called"),
    "stats": ("--stats", "no pass was looked at; see --every"),
    "parameters": ("--stats", "no optimizer took a step with a gradient"),
    "ranks": ("", "the run has one process"),
    "nonfinite": ("--nonfinite", "all that was looked at is finite"),
    "silent": ("", "every module that was watched was called"),
}
"""For each table the option that fills it, and why else it is empty."""


def _why_empty(run: RunData, name: str) -> str:
    """Why a table that was asked for has no rows."""
    option, reason = _EMPTY[name]
    if option and not run.measured(option):
        reason = f"the run was made without {option}"
    return f"hookline: the table {name} has no rows: {reason}"


def _how_to_see(run: RunData, left_out: int) -> str:
    path = run.ranks[0].path
    lines = f"{plural(left_out, 'line')} left out; "
    if not path.name:
        return f"{lines}keep the run with -o run.hookline and see all by hookline show --all"
    return f"{lines}hookline show {path} --all shows all"
