"""Reading the files of runs. Knows no torch, so that showing a run is quick."""

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeAlias, TypeVar

from hookline.errors import RunFileError
from hookline.record.rows import EventRow, RunRow, SeriesRow
from hookline.record.schema import APPLICATION, NAMES, VERSION, reader

RowT = TypeVar("RowT")
Kinds: TypeAlias = Collection[type[Any]]

_COURSE: Final = (SeriesRow, EventRow)

_APART: Final = 600.0
"""Processes of a run begin within so many seconds; ids may come again later."""

_SILENT: Final = 600.0
"""A process elsewhere that has not written for so many seconds is taken for dead."""


class Rank:
    """What one process of a run kept.

    Args:
        path: its file.
        tables: the rows by their class.

    Attributes:
        path: its file.
        info: what the run was.
    """

    def __init__(self, path: Path, tables: dict[type[Any], list[Any]]) -> None:
        self.path: Final = path
        self._tables: Final = tables

    @property
    def info(self) -> RunRow:
        """What the run was, in this process.

        Raises:
            RunFileError: the process was killed before it wrote anything.
        """
        if not self.rows(RunRow):
            msg = f"{self.path} is empty: its process was killed before it wrote anything"
            raise RunFileError(msg)
        return self.rows(RunRow)[0]

    @property
    def state(self) -> str:
        """As `RunRow.state`, or `"killed"` where it says `running` and there is no such process."""
        info = self.info
        return "killed" if info.state == "running" and not is_alive(info) else info.state

    def rows(self, kind: type[RowT]) -> list[RowT]:
        """The rows of a class, such as `TimeRow`."""
        return self._tables.get(kind, [])


class RunData:
    """What a run kept, in all its processes.

    Args:
        ranks: its processes.
        missing: the ranks of which no file was found.

    Attributes:
        missing: likewise.
    """

    missing: tuple[int, ...] = ()

    def __init__(self, ranks: Sequence[Rank], missing: Sequence[int] = ()) -> None:
        self._ranks: Final = tuple(ranks)
        self.missing = tuple(missing)

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """Its processes."""
        return self._ranks

    def __repr__(self) -> str:
        kind, first = type(self).__name__, self.ranks[0]
        if not first.rows(RunRow):
            return f"<{kind} of a process that was killed before it wrote anything>"
        info = self.info
        counts = {name: len(first.rows(each)) for each, name in NAMES.items() if each is not RunRow}
        rows = ", ".join(f"{name} {count}" for name, count in counts.items() if count)
        what = f"{' '.join(info.program) or 'run'}, {first.state} after {info.seconds:.1f} s"
        ranks = f", {info.ranks} processes" if info.ranks > 1 else ""
        return f"<{kind} of {what}{ranks}; rows: {rows or 'none'}>"

    @property
    def info(self) -> RunRow:
        """What the run was, in its first process."""
        return self.ranks[0].info

    def rows(self, kind: type[RowT]) -> list[RowT]:
        """The rows of a class, such as `TimeRow`, of the first process."""
        return self.ranks[0].rows(kind)

    def measured(self, option: str) -> bool:
        """Whether what an option of `hookline run` asks for, such as `--nonfinite`, was measured.

        So it is taken to have been where the run does not tell its options.
        """
        return all(option in row.options for row in self.rows(RunRow) if row.options)


def load(path: str | Path, *, course: bool = True) -> RunData:
    """Read a run, of all its processes.

    Args:
        path: its file, as it was given to `-o` or `record`. The files of further processes are
            next to it, as `run.hookline.1` and so on; given one of these, only that is read.
        course: whether to read how it went over its passes (`SeriesRow`, `EventRow`) too: of a
            large model, most of the file.

    Raises:
        RunFileError: there is no such file, it is no run, or it is of a newer version.
    """
    kinds = [kind for kind in NAMES if course or kind not in _COURSE]
    first = load_rank(Path(path), kinds)
    several = first.rows(RunRow) and first.info.rank == 0
    expected = range(1, first.info.ranks) if several else range(0)
    others = {rank.info.rank: rank for rank in _others(first, expected, kinds)}
    missing = [number for number in expected if number not in others]
    return RunData([first, *others.values()], missing)


def _others(first: Rank, expected: Iterable[int], kinds: Kinds) -> Iterator[Rank]:
    """The other processes of a run, as far as there are files of them."""
    for number in expected:
        path = first.path.with_name(f"{first.path.name}.{number}")
        try:
            other = load_rank(path, kinds)
            found = other.info
        except RunFileError:
            continue  # it was killed before it wrote anything, or is elsewhere
        if found.id == first.info.id and abs(found.started - first.info.started) <= _APART:
            yield other


def is_alive(info: RunRow) -> bool:
    """Whether the process of a run is there; of one on another machine, whether it still writes."""
    if info.host != platform.node():
        return time.time() - info.updated < _SILENT
    try:
        os.kill(info.process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def load_rank(path: Path, kinds: Kinds = tuple(NAMES)) -> Rank:
    """Read the file of one process of a run.

    Args:
        path: the file.
        kinds: the rows to read, by their class; all by default.

    Raises:
        RunFileError: as `load` does.
    """
    if not path.is_file():
        msg = f"there is no run at {path}; `hookline run -o {path.name} ...` keeps one"
        raise RunFileError(msg)
    try:
        return Rank(path, _tables(path, path, kinds))
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorname in _NOT_ROLLED_BACK:
            return Rank(path, _tables_of_copy(path, kinds))
        msg = (
            f"{path} can't be read as a run: {error}; give a file that `hookline run -o` or "
            "`hookline.record` wrote"
        )
        raise RunFileError(msg) from error


_NOT_ROLLED_BACK: Final = ("SQLITE_READONLY_ROLLBACK", "SQLITE_CANTOPEN")
"""What SQLite says where a killed process left half a transaction and nobody may undo it."""


def _tables(path: Path, file: Path, kinds: Kinds) -> dict[type[Any], list[Any]]:
    """What is in a file, which is that at a path, or a copy of it."""
    # Writable where that can be: SQLite must roll back what a killed process left half-done.
    with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=rw", uri=True)) as opened:
        _check(path, opened)
        return {kind: _read(opened, kind) for kind in kinds}


def _tables_of_copy(path: Path, kinds: Kinds) -> dict[type[Any], list[Any]]:
    """What is in a file that can't be written, as it is after half a transaction is undone."""
    with TemporaryDirectory() as folder:
        try:
            for name in (path.name, f"{path.name}-journal"):
                shutil.copyfile(path.with_name(name), Path(folder) / name)
            return _tables(path, Path(folder) / path.name, kinds)
        except (OSError, sqlite3.DatabaseError) as error:
            msg = f"{path} can't be read as a run: {error}"
            raise RunFileError(msg) from error


def _check(path: Path, opened: sqlite3.Connection) -> None:
    """Refuse what is no run, or a newer one."""
    if _pragma(opened, "application_id") != APPLICATION:
        msg = f"{path} is no run: it was not written by `hookline run -o` or `hookline.record`"
        raise RunFileError(msg)
    version = _pragma(opened, "user_version")
    if version > VERSION:
        msg = (
            f"{path} has schema {version}, and this hookline reads up to {VERSION}; "
            "read it with the newer hookline that wrote it"
        )
        raise RunFileError(msg)


def _pragma(opened: sqlite3.Connection, name: str) -> int:
    return opened.execute(f"PRAGMA {name}").fetchone()[0]


def _read(opened: sqlite3.Connection, kind: type[RowT]) -> list[RowT]:
    """All rows of a kind; a table that the file's version does not have is empty."""
    name = NAMES[kind]
    known = opened.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)).fetchone()
    if known is None:
        return []
    cursor = opened.execute(f'SELECT * FROM "{name}" ORDER BY rowid')  # noqa: S608
    read = reader(kind, [column[0] for column in cursor.description])
    return [read(values) for values in cursor]
