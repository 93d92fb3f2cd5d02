"""The commands. What is heavy (torch, tables) is imported by the command that needs it."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Self, TextIO

import click

from hookline._version import __version__
from hookline.cli.script import Program, ProgramError


def main() -> None:
    """Run the command line, and end the process as the command or its program says."""
    try:
        outcome = _command()
        if isinstance(outcome, _Run):
            outcome.start()
        elif isinstance(outcome, int):
            sys.exit(outcome)
    except ProgramError as error:
        _say(sys.stderr, str(error))
        sys.exit(2)


def _command() -> object:
    """What the command that the user called returned.

    The program runs later, out of reach of click, which would catch its Ctrl-C and its errors.
    """
    try:
        return cli.main(prog_name="hookline", standalone_mode=False, windows_expand_args=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)


@click.group(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""\b
    Examples:
      hookline run train.py --epochs 3    run a script, then show where its time went
      hookline run -m package.train       the same for a module
      hookline run --help                 what `run` can do
    """,
)
@click.version_option(__version__, message="%(prog)s %(version)s")
def cli() -> None:
    """Watch what flows through the PyTorch models of a program, without changing the program."""


# Options end at the program, so its arguments are its own, whatever they are called. An unknown
# option before it is an error: let through, a slip would be taken for the program's name.
@cli.command(
    short_help="Run a program under hooks, and report.",
    context_settings={"allow_interspersed_args": False},
    epilog="""\b
    Examples:
      hookline run train.py --epochs 3    every argument after the script is the script's
      hookline run -m package.train       a module or package, as with python -m
      hookline run app/                   a folder or zip file with a __main__.py
      hookline run --time train.py        time by module, which is also the default
      hookline run --level both train.py  time by module, and of the functions in each
    """,
)
# Time is the only measurement so far, so it is on whether asked for or not.
@click.option(
    "--time",
    is_flag=True,
    expose_value=False,
    help="Time, forward and backward (default).",
)
@click.option(
    "--level",
    type=click.Choice(["module", "function", "both"]),
    default="module",
    show_default=True,
    help="Of what: modules, functions, or both.",
)
@click.option("-m", "as_module", is_flag=True, help="The program is a module, not a file.")
@click.argument("program", metavar="PROGRAM", type=click.UNPROCESSED)
@click.argument("args", metavar="[ARGS]...", nargs=-1, type=click.UNPROCESSED)
def run(program: str, args: tuple[str, ...], *, as_module: bool, level: str) -> _Run:
    """Run a program unchanged under hooks, and report on stderr when it has ended.

    PROGRAM is what you would give to python. It sees what it would see there: its arguments, its
    streams, its exit status. The report also comes when the program fails or is interrupted.
    """
    return _Run(Program.from_args(program, args, as_module=as_module), level)


class _Run:
    """A program to be run under hooks."""

    def __init__(self, program: Program, level: str) -> None:
        self._program = program
        self._level = level

    def start(self) -> None:
        """Run the program; what it raises comes out."""
        # First, with hookline's own search path: the program's folder may hold a `queue.py`.
        hooks = _load_hooks(self._level)
        self._program.prepare()
        self._program.run(around=hooks)


def _load_hooks(level: str) -> AbstractContextManager[object] | None:
    """Import and make what is needed; if that fails, the program runs without hooks."""
    try:
        from hookline.record.run import Recorder
        from hookline.report.tables import print_time

        recorder = Recorder(time=True, level=level)

        def report(stderr: TextIO) -> None:
            print_time(recorder.rows(), stderr)
            for fault in recorder.faults:
                _say(stderr, f"a fault of its own: {fault}")

        return _Hooks(recorder, report)
    except Exception:  # noqa: BLE001 (whatever our fault is)
        _say_fault(sys.stderr, "could not load its hooks; the program runs without them")
        return None


class _Hooks:
    """The hooks around a program: on while it runs, reported on stderr when it is over.

    A fault of hookline's own never comes out of here: it is reported, and the program goes on.
    """

    def __init__(
        self, recorder: AbstractContextManager[object], report: Callable[[TextIO], None]
    ) -> None:
        self._recorder = recorder
        self._report = report
        self._opened = ExitStack()
        self._were_on = False
        # The program may put another stream in its place.
        self._stderr = sys.stderr

    def __enter__(self) -> Self:
        try:
            self._opened.enter_context(self._recorder)
            self._were_on = True
        except Exception:  # noqa: BLE001 (whatever our fault is)
            _say_fault(self._stderr, "could not set its hooks; the program runs without them")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self._opened.close()
            if kind is None and self._were_on:
                _flush_stdout()
                self._report(self._stderr)
        except Exception:  # noqa: BLE001 (whatever our fault is)
            _say_fault(self._stderr, "could not make its report; the program is not affected")


def _flush_stdout() -> None:
    """What the program printed last should stand before the report.

    If it can't be written, Python says so later, as it would without us.
    """
    with contextlib.suppress(Exception):
        sys.stdout.flush()


def _say(stderr: TextIO, text: str) -> None:
    print(f"hookline: {text}", file=stderr)


def _say_fault(stderr: TextIO, text: str) -> None:
    """Report the exception being handled, a fault of ours; if even that fails, so be it."""
    with contextlib.suppress(Exception):
        _say(stderr, f"a fault of its own: {text}\n{traceback.format_exc().rstrip()}")
