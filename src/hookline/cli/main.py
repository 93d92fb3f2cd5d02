"""The commands. What is heavy (torch, tables) is imported by the command that needs it."""

from __future__ import annotations

import sys

import click

from hookline._version import __version__
from hookline.cli.export import export
from hookline.cli.hooks import hooks
from hookline.cli.run import Start, run
from hookline.cli.script import ProgramError
from hookline.cli.show import compare, show


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


class _Commands(click.Group):
    """The commands; a program in the place of one is told where it goes."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if not args[0].endswith(".py"):
                raise
            msg = f"{error.message} To run a program: hookline run {args[0]}"
            raise click.UsageError(msg, ctx) from error


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""\b
    Examples:
      hookline run train.py --epochs 3    run a script, then show where its time went
      hookline run -m package.train       the same for a module
      hookline run -o run.hookline train.py    keep the run
      hookline show run.hookline          show it again
      hookline export run.hookline -o report.html    as a page for the browser
      hookline compare run.hookline other.hookline   what got slower, larger, dead
      hookline hooks                      the hooks that there are
      hookline run --help                 what `run` can do
    """,
)
@click.version_option(__version__, message="%(prog)s %(version)s")
def cli() -> None:
    """Watch what flows through the PyTorch models of a program, without changing the program."""


for command in (run, show, export, compare, hooks):
    cli.add_command(command)
