"""The commands. What is heavy (torch, tables) is imported by the command that needs it."""

from __future__ import annotations

import sys

import click

from hookline._version import __version__
from hookline.cli.export import export
from hookline.cli.run import Start, run
from hookline.cli.script import ProgramError


def main() -> None:
    """Run the command line, and end the process as the command or its program says."""
    try:
        outcome = _command()
        if isinstance(outcome, Start):
            outcome.start()
        elif isinstance(outcome, int):
            sys.exit(outcome)
    except ProgramError as error:
        sys.stderr.write(f"hookline: {error}\n")
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


cli.add_command(run)
cli.add_command(export)
