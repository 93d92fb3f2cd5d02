"""`hookline run`: a program unchanged under hooks."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import click

from hookline.cli.options import Options
from hookline.cli.script import Program, ProgramError
from hookline.report.formats import FORMATS

if TYPE_CHECKING:
    from hookline.record.live import Live
    from hookline.record.writer import Writer

MEASURES = {
    "time": "Time, forward and backward (default).",
    "nonfinite": "Where NaN and Inf come from (default).",
    "stats": "Activations, gradients and parameters.",
    "memory": "Bytes of outputs, and kept for the backward.",
    "flops": "FLOPs, forward and backward.",
    "print": "A line for each call.",
}
"""What can be measured, and what it is called in help."""


def _measures(command: Any) -> Any:
    """The options for what is measured, in the order of `MEASURES`."""
    for name, text in reversed(MEASURES.items()):
        option = click.option(f"--{name}", "measures", flag_value=name, multiple=True, help=text)
        command = option(command)
    return command


# Options end at the program, so its arguments are its own, whatever they are called. An unknown
# option before it is an error: let through, a slip would be taken for the program's name.
@click.command(
    short_help="Run a program under hooks, and report.",
    context_settings={"allow_interspersed_args": False},
    epilog="""\b
    Examples:
      hookline run train.py --epochs 3               arguments after it are its own
      hookline run -m package.train                  as with python -m
      hookline run app/                              a folder or zip with a __main__.py
      hookline run --time train.py                   time by module, and nothing else
      hookline run --level both train.py             of modules and functions
      hookline run -o report.html train.py           a report to look at in a browser
      hookline run -o run.hookline train.py          keep it, for hookline show
      hookline run --where 'encoder.**' train.py     only what is in the encoder
      hookline run --live train.py                   a line on the terminal meanwhile
    """,
)
@_measures
@click.option(
    "--level",
    type=click.Choice(["module", "function", "both"]),
    default="module",
    show_default=True,
    help="Of what: modules, functions, or both.",
)
@click.option(
    "--where",
    multiple=True,
    metavar="PATTERN",
    help="Only of modules whose path matches, such as encoder.layers.*.self_attn; ** crosses dots. "
    "With ':name', of functions. May be given several times.",
)
@click.option(
    "--every",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    metavar="K",
    help="Statistics of each K-th pass.",
)
@click.option(
    "-o",
    "outputs",
    multiple=True,
    type=click.Path(dir_okay=False),
    help=f"A file to keep the run in, or a report of it: {', '.join(FORMATS)}. "
    "May be given several times.",
)
@click.option(
    "--tensorboard",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="A folder to write the run to, for TensorBoard.",
)
@click.option(
    "--live",
    is_flag=True,
    help="Show in the bottom line of the terminal how the run stands, while it goes on.",
)
@click.option("-m", "as_module", is_flag=True, help="The program is a module, not a file.")
@click.argument("program", metavar="PROGRAM", type=click.UNPROCESSED)
@click.argument("args", metavar="[ARGS]...", nargs=-1, type=click.UNPROCESSED)
def run(program: str, args: tuple[str, ...], *, as_module: bool, **options: Any) -> Start:
    """Run a program unchanged under hooks, and report on stderr when it has ended.

    PROGRAM is what you would give to python. It sees what it would see there: its arguments, its
    streams, its exit status. The report also comes when the program fails or is interrupted.

    Measured are --time and --nonfinite by default; naming any of --time to --print turns the
    defaults off, and only what is named is measured.
    """
    found = Options(**options)
    found.check()
    command = [*(["-m"] if as_module else []), program, *args]
    return Start(Program.from_args(program, args, as_module=as_module), found.absolute(), command)


class Start:
    """A program to be run under hooks.

    Args:
        program: the program.
        options: what is measured, and what becomes of it.
        command: what the user called: the program and its arguments.
    """

    def __init__(self, program: Program, options: Options, command: list[str]) -> None:
        self._program = program
        self._options = options
        self._command = command

    def start(self) -> None:
        """Run the program; what it raises comes out."""
        # First, with hookline's own search path: the program's folder may hold a `queue.py`.
        hooks = _load_hooks(self._options, self._command)
        self._program.prepare()
        self._program.run(around=hooks)


def _load_hooks(options: Options, command: list[str]) -> AbstractContextManager[object] | None:
    """Import and make what is needed; if that fails, the program runs without hooks."""
    try:
        return _Hooks(options, command)
    except Exception:  # noqa: BLE001 - whatever our fault is
        _say_fault(sys.stderr, "could not load its hooks; the program runs without them")
        return None


class _Hooks:
    """The hooks around a program: on while it runs, reported on stderr when it is over.

    A fault of hookline's own never comes out of here: it is reported, and the program goes on.
    """

    def __init__(self, options: Options, command: list[str]) -> None:
        from hookline.cli import outcome

        self._options = options
        self._report = outcome.report
        # The program may put another stream in its place.
        self._stderr = sys.stderr
        self._writer = _writer(options, command, self._say)
        self._without_file = partial(_writer, replace(options, outputs=()), command, self._say)
        self._live: Live | None = None
        self._were_on = False

    def __enter__(self) -> Self:
        try:
            self._start()
            self._were_on = True
            if self._options.live:
                self._live = _live(self._writer, self._stderr, self._say)
            if self._live is not None:
                self._live.start()
        except Exception:  # noqa: BLE001 - whatever our fault is
            _say_fault(self._stderr, "could not set its hooks; the program runs without hooks")
        return self

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: object
    ) -> None:
        if not self._were_on:
            return
        try:
            if self._live is not None:
                self._end_live(self._live)
            kept = self._writer.close(error)
            if not isinstance(error, ProgramError):
                _flush_stdout()
                self._report(kept, self._options, self._stderr, self._say)
        except Exception:  # noqa: BLE001 - whatever our fault is
            _say_fault(self._stderr, "could not make its report; the program is not affected")

    def _end_live(self, live: Live) -> None:
        fault = live.stop()
        if fault is not None:
            self._say(f"a fault of its own ended --live: {fault!r}")

    def _start(self) -> None:
        from hookline.errors import RunFileError

        try:
            self._writer.start()
        except RunFileError as error:
            self._say(f"{error}; the run is not kept")
            self._writer = self._without_file()
            self._writer.start()

    def _say(self, text: str) -> None:
        """Tell the user; if even that fails, so be it."""
        with contextlib.suppress(Exception):
            self._stderr.write(f"hookline: {text}\n")


def _writer(options: Options, command: list[str], say: Any) -> Writer:
    from hookline.record.measures import Measures
    from hookline.record.run import Recorder
    from hookline.record.writer import Writer

    chosen = dict.fromkeys(options.measures or ("time", "nonfinite"), True)
    measures = Measures(**chosen, level=options.level, every=options.every)
    path = next(iter(options.files), None)
    return Writer(Recorder(measures, options.where), path, command, say)


def _live(writer: Writer, stderr: Any, say: Any) -> Live | None:
    """The line on the terminal; of several processes the first one shows it."""
    from hookline.record.live import Live
    from hookline.record.ranks import Process

    if Process.here().rank:
        return None
    try:
        if os.environ.get("TERM") == "dumb" or not stderr.isatty():
            say("--live needs a terminal, and stderr is none; the program runs without the line")
            return None
        return Live(writer.glance, stderr.fileno())
    except Exception:  # noqa: BLE001 - whatever our fault is
        _say_fault(stderr, "could not start --live; the program runs without the line")
        return None


def _flush_stdout() -> None:
    """What the program printed last should stand before the report.

    If it can't be written, Python says so later, as it would without us.
    """
    with contextlib.suppress(Exception):
        sys.stdout.flush()


def _say_fault(stderr: Any, text: str) -> None:
    """Report the exception being handled, a fault of ours; if even that fails, so be it."""
    with contextlib.suppress(Exception):
        fault = traceback.format_exc().rstrip()
        stderr.write(f"hookline: a fault of its own: {text}\n{fault}\n")
