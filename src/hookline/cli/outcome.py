"""What is told and written when a program that ran under hooks is over."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TextIO

from hookline.errors import HooklineError
from hookline.record.runs import Rank
from hookline.report.formats import FORMATS
from hookline.report.terminal import print_run
from hookline.runs import Run

if TYPE_CHECKING:
    from hookline.cli.options import Options

_REPORTS: Final = f"reports end in {', '.join(FORMATS)}"


def report(kept: Rank, options: Options, stderr: TextIO, say: Callable[[str], None]) -> None:
    """Print the tables, and write the files that were asked for.

    Of several processes, the first one does; each has its run file.

    Args:
        kept: what was measured.
        options: what was asked for.
        stderr: where tables are printed.
        say: tells the user something, in a line.
    """
    run, info = Run([kept]), kept.info
    if info.rank == 0:
        print_run(run, stderr)
        for path in options.exports:
            _try(lambda path=path: run.export(path), str(path), say)
    folder = options.tensorboard
    if folder is not None:
        inner = f"{folder}/rank{info.rank}" if info.rank else folder
        _try(lambda: run.to_tensorboard(inner), inner, say)
    if kept.path.name and info.rank == 0:
        of = f" has all {info.ranks} processes" if info.ranks > 1 else ""
        kind = "" if kept.path.suffix in ("", ".hookline") else f", a run file ({_REPORTS})"
        say(f"kept in {kept.path}{kind}; hookline show {kept.path}{of}")


def _try(write: Callable[[], None], what: str, say: Callable[[str], None]) -> None:
    """One that can't be written must not keep the others from it."""
    try:
        write()
        say(f"wrote {what}")
    except (HooklineError, OSError) as error:
        say(f"could not write {what}: {error}")
