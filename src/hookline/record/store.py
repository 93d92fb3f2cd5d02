"""The file of a run: one SQLite database, whole at any moment, also when its process is killed."""

from __future__ import annotations

import os
import platform
import sqlite3
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Self
from weakref import WeakSet

from hookline.errors import RunFileError
from hookline.record.rows import RunRow
from hookline.record.runs import is_alive, load_rank
from hookline.record.schema import APPLICATION, NAMES, TABLES, VERSION, create, insert, to_sql

_GONE: Final = "it was moved or removed meanwhile"


class Store:
    """Writes the file of a run.

    Every `write` is one transaction under SQLite's rollback journal, so that the file alone holds
    all up to the last of them. Rows replace all rows of their kind: what is kept is aggregates,
    and a file does not grow with the length of a run.

    Args:
        path: the file; a run that it holds is replaced, unless a process is still writing it.

    Raises:
        RunFileError: the file can't be written, holds something else, or is in use.

    Example:
        >>> import tempfile
        >>> from hookline.record.rows import FaultRow
        >>> from hookline.record.runs import load
        >>> path = Path(tempfile.mkdtemp()) / "run.hookline"
        >>> with Store(path) as store:
        ...     store.write({FaultRow: [FaultRow("a fault")]})
        >>> load(path).rows(FaultRow)
        [FaultRow(text='a fault')]
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        if not self.path.parent.is_dir():
            msg = f"{path} can't be written: there is no folder {self.path.parent.absolute()}"
            raise RunFileError(msg)
        _make_room(self.path)
        try:
            self._connection = sqlite3.connect(
                self.path, isolation_level=None, check_same_thread=False
            )
            self._begin()
            self._made: Final = self.path.stat()
        except (sqlite3.Error, OSError) as error:
            raise _failure(self.path, "can't be written", error) from error
        _open.add(self)

    def write(self, tables: Mapping[type[Any], Iterable[object]]) -> None:
        """Put rows in the place of all rows of their kinds, in one transaction.

        Args:
            tables: rows by their class.

        Raises:
            RunFileError: they could not be written; the file, if it is still there, holds what it
                held before.
        """
        try:
            with self._lock, self._connection:
                self._connection.execute("BEGIN IMMEDIATE")
                for kind, rows in tables.items():
                    name = NAMES[kind]
                    self._connection.execute(f'DELETE FROM "{name}"')  # noqa: S608
                    self._connection.executemany(insert(name), (to_sql(name, r) for r in rows))
        except sqlite3.Error as error:
            reason = _GONE if self._is_gone() or _lost_its_journal(error) else error
            raise _failure(self.path, "could not be written", reason) from error
        if self._is_gone():  # in the middle of it: then SQLite writes on into nothing
            raise _failure(self.path, "could not be written", _GONE)

    def close(self) -> None:
        """Close the file."""
        _open.discard(self)
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def hold(self) -> None:
        """Wait for the transaction that runs, and let no other begin."""
        self._lock.acquire()

    def go_on(self) -> None:
        """Undo `hold`."""
        self._lock.release()

    def _is_gone(self) -> bool:
        try:
            return not os.path.samestat(self.path.stat(), self._made)
        except OSError:
            return True

    def _begin(self) -> None:
        with self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.execute(f"PRAGMA application_id = {APPLICATION}")
            self._connection.execute(f"PRAGMA user_version = {VERSION}")
            for name in TABLES:
                self._connection.execute(create(name))


_open: Final[WeakSet[Store]] = WeakSet()
_held: Final[list[Store]] = []


def _before_fork() -> None:
    # A child that ends with half a transaction in its memory would undo it in the file.
    _held.extend(_open)
    for store in _held:
        store.hold()


def _after_fork() -> None:
    while _held:
        _held.pop().go_on()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork
    )


def _make_room(path: Path) -> None:
    """Remove an earlier run.

    The journal goes first: alone it is rubbish, but next to a new database SQLite would roll it
    back into that.
    """
    try:
        if not path.exists() or path.stat().st_size == 0:
            return
        _check_that_it_is_over(path)
        path.with_name(f"{path.name}-journal").unlink(missing_ok=True)
        path.unlink()
    except RunFileError:
        raise
    except OSError as error:
        raise _failure(path, "can't be replaced", error) from error


def _check_that_it_is_over(path: Path) -> None:
    for row in load_rank(path).rows(RunRow):
        if row.state == "running" and _is_written(path, row):
            msg = (
                f"{path} is being written by process {row.process}; "
                "give another file, or wait until it has ended"
            )
            raise RunFileError(msg)


def _is_written(path: Path, row: RunRow) -> bool:
    if row.host != platform.node():
        return False
    if row.process == os.getpid():  # or an earlier one of that number, as in containers
        return any(store.path.exists() and store.path.samefile(path) for store in _open)
    return is_alive(row)


def _lost_its_journal(error: sqlite3.Error) -> bool:
    # As a folder is removed, the journal may go before the file.
    return getattr(error, "sqlite_errorname", "") == "SQLITE_IOERR_DELETE_NOENT"


def _failure(path: Path, what: str, reason: object) -> RunFileError:
    return RunFileError(f"{path} {what}: {reason}")
