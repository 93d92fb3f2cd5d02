"""Writes what a recorder measured to the run's file, about once a second."""

from __future__ import annotations

import os
import platform
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch

from hookline._version import __version__
from hookline.core.thread import local
from hookline.errors import RunFileError
from hookline.record.live import Glance
from hookline.record.pace import turns
from hookline.record.ranks import Process
from hookline.record.rows import RunRow
from hookline.record.run import Recorder, Tables
from hookline.record.runs import Rank
from hookline.record.store import Store
from hookline.torch_base.stack import steps

INTERVAL: Final = 1.0
"""Seconds between two commits, at least."""


class Writer:
    """Lets a recorder measure, and keeps a file up to date with it, until it is closed.

    What it needs of the recorder's hooks and of the file's disk happens in a thread of its own. If
    the file can't be written any more, that is said once, and tried again as long as the run goes
    on; the program never knows.

    Args:
        recorder: what is measured.
        path: the file, or None to keep nothing until the end.
        program: the program and its arguments.
        say: tells the user something, in a line.
        interval: seconds between two commits, at least.
    """

    def __init__(
        self,
        recorder: Recorder,
        path: str | Path | None,
        program: Sequence[str],
        say: Callable[[str], None],
        interval: float = INTERVAL,
    ) -> None:
        process = Process.here()
        self._recorder: Final = recorder
        self._say: Final = say
        self._interval: Final = interval
        self._path: Final = None if path is None else process.file(Path(path))
        self._store: Store | None = None
        self._row = _row(recorder, program, process)
        self._steps = steps.count
        self._failed = False
        self._written = False
        self._abandoned = False
        self._over = threading.Event()
        self._process: Final = os.getpid()
        self._thread = threading.Thread(target=self._run, name="hookline writer", daemon=True)

    def start(self) -> None:
        """Set the hooks; the file is there at once.

        Raises:
            RunFileError: the file can't be made.
        """
        self._recorder.__enter__()
        try:
            if self._path is not None:
                self._store = Store(self._path)
                self._write(over=False)
                self._thread.start()
        except BaseException:
            self.abandon()
            raise

    def close(self, error: BaseException | None = None) -> Rank:
        """Remove the hooks, and write all for the last time.

        Args:
            error: what ended the program, if it was an error.

        Returns:
            What was kept; its path is empty where the file does not hold all of it. In a forked
            child nothing: what that does is not measured.
        """
        self._recorder.__exit__()
        self._over.set()
        if os.getpid() != self._process:
            return Rank(Path(), {})
        if self._thread.is_alive():
            self._thread.join()
        tables = self._finish(error)
        return Rank(self._path if self._path is not None and self._written else Path(), tables)

    def abandon(self) -> bool:
        """Remove the hooks, and let the thread write for the last time; whether they were on."""
        if self._over.is_set() or os.getpid() != self._process:
            return False
        self._recorder.__exit__()
        self._abandoned = True
        self._over.set()
        return True

    def now(self) -> Rank:
        """What there is now."""
        if os.getpid() != self._process:
            return Rank(Path(), {})
        return Rank(self._path or Path(), self._tables(over=False))

    def _finish(self, error: BaseException | None = None) -> Tables:
        self._row = _ended(self._row, error)
        tables = self._write(over=True)
        if self._store is not None:
            self._store.close()
        return tables

    def glance(self) -> Glance:
        """How the run stands; waits for nothing."""
        return self._recorder.glance()

    def _tables(self, *, over: bool) -> Tables:
        self._row = replace(self._row, updated=time.time(), steps=steps.count - self._steps)
        return {RunRow: [self._row], **self._recorder.tables(over=over)}

    def _run(self) -> None:
        # Its torch calls are ours, and nobody's business.
        local.thread.busy = local.thread.onlooker = True
        for _ in turns(self._over, self._interval, first=self._interval):
            try:
                self._write(over=False)
            except Exception:  # noqa: BLE001 - whatever our fault is
                self._fail(traceback.format_exc().rstrip())
        if self._abandoned:
            self._finish()

    def _write(self, *, over: bool) -> Tables:
        tables = self._tables(over=over)
        if self._store is not None:
            self._written = False
            try:
                self._store.write(tables)
                self._written = True
            except RunFileError as error:
                self._fail(str(error))
        return tables

    def _fail(self, text: str) -> None:
        if not self._failed:
            self._failed = True
            self._say(f"{text}; the program goes on")


def _row(recorder: Recorder, program: Sequence[str], process: Process) -> RunRow:
    now = time.time()
    return RunRow(
        id=process.run,
        program=tuple(program),
        state="running",
        started=now,
        updated=now,
        options=recorder.measures.options,
        rank=process.rank,
        ranks=process.ranks,
        process=os.getpid(),
        host=platform.node(),
        hookline=__version__,
        torch=torch.__version__,
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
    )


def _ended(row: RunRow, error: BaseException | None) -> RunRow:
    left_early = isinstance(error, GeneratorExit)
    if error is None or left_early or (isinstance(error, SystemExit) and error.code in (None, 0)):
        return replace(row, state="finished")
    state = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
    return replace(row, state=state, error="".join(traceback.format_exception_only(error)).strip())
