"""What the user of `hookline run` asked for, and what of it can be refused at once."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hookline.core.patterns import check_pattern, split_address
from hookline.errors import HookValueError, MissingExtraError, SelectionError
from hookline.report.extras import check_extra
from hookline.report.formats import check_can_write, check_run_file, is_known

if TYPE_CHECKING:
    from hookline.record.measures import Level


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for; the fields are the options of `run`."""

    measures: tuple[str, ...]
    level: Level
    where: tuple[str, ...]
    every: int
    outputs: tuple[str, ...]
    tensorboard: str | None
    live: bool

    def check(self) -> None:
        """Refuse what can't be read or written, before the program runs.

        Raises:
            UsageError: it can't.
        """
        for pattern in self.where:
            _check_where(pattern, self.level)
        for path in map(Path, self.outputs):
            try:
                check_run_file(path)
                check_can_write(path)
            except (HookValueError, MissingExtraError) as error:
                msg = f"-o {error}"
                raise click.UsageError(msg) from error
            if not path.absolute().parent.is_dir():
                msg = f"-o {path}: there is no folder {path.absolute().parent}"
                raise click.UsageError(msg)
            _check_writable(path)
        if self.tensorboard is not None:
            _check_tensorboard()
        if len(self.files) > 1:
            msg = f"-o {self.files[1]}: a run is kept in one file, and {self.files[0]} is given too"
            raise click.UsageError(msg)

    def absolute(self) -> Options:
        """The same, with paths that the program can't change the meaning of by `os.chdir`."""
        outputs = tuple(str(Path(path).absolute()) for path in self.outputs)
        folder = None if self.tensorboard is None else str(Path(self.tensorboard).absolute())
        return replace(self, outputs=outputs, tensorboard=folder)

    @property
    def files(self) -> list[Path]:
        """The run files that were asked for."""
        return [Path(path) for path in self.outputs if not is_known(path)]

    @property
    def exports(self) -> list[Path]:
        """The other files."""
        return [Path(path) for path in self.outputs if is_known(path)]


def _check_where(pattern: str, level: Level) -> None:
    """Refuse a pattern that can match nothing, whatever models the program makes."""
    try:
        check_pattern(pattern)
    except SelectionError as error:
        msg = f"--where: {error}"
        raise click.UsageError(msg) from error
    if level == "module" and split_address(pattern) is not None:
        msg = (
            f"--where {pattern!r} means functions, and only modules are measured; add "
            "--level function, or --level both"
        )
        raise click.UsageError(msg)


def _check_tensorboard() -> None:
    try:
        check_extra("tensorboard")
    except MissingExtraError as error:
        msg = f"--tensorboard: {error}"
        raise click.UsageError(msg) from error


def _check_writable(path: Path) -> None:
    """Refuse a file that can't be written, and leave no trace: other processes may write it now."""
    try:
        if path.is_file():
            path.open("ab").close()
        elif not path.exists():
            tempfile.TemporaryFile(dir=path.absolute().parent).close()
    except OSError as error:
        msg = f"-o {path} can't be written: {error.strerror or error}"
        raise click.UsageError(msg) from error
