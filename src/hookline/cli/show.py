"""`hookline show` and `hookline compare`: kept runs, in the terminal."""

from __future__ import annotations

import click

from hookline.cli.told import told
from hookline.report.tables import TABLES

_RUN = click.Path(dir_okay=False)
_all = click.option("--all", "everything", is_flag=True, help="All lines of long tables.")


@click.command(
    short_help="Show a kept run in the terminal.",
    epilog="""\b
    Examples:
      hookline show run.hookline                         what there is, long tables cut
      hookline show run.hookline --table times --all     all of one table
      hookline show run.hookline --table stats --sort norm
      hookline show run.hookline --all | less
    """,
)
@click.argument("run", metavar="RUN", type=_RUN)
@_all
@click.option(
    "--table",
    "tables",
    multiple=True,
    type=click.Choice(TABLES),
    help="Only these tables. May be given several times.",
)
@click.option(
    "--sort",
    metavar="COLUMN",
    default="",
    help="Sort tables by a column, those that have it: 'calls', 'forward', 'forward self', "
    "'module', ...",
)
def show(run: str, *, everything: bool, tables: tuple[str, ...], sort: str) -> None:
    """Show RUN, a file that `hookline run -o` kept.

    A run that is still going on can be shown too, up to the last second. Of several processes the
    tables are those of the first, but for what is not finite; the table `ranks` compares them.
    """
    from hookline.record.runs import load
    from hookline.report.terminal import LINES, print_run

    limit = None if everything else LINES
    with told():
        print_run(load(run, course=False), limit=limit, tables=tables, sort=sort)


@click.command(
    short_help="Show what differs between two runs.",
    epilog="""\b
    Examples:
      hookline compare before.hookline after.hookline
      hookline compare before.hookline after.hookline --threshold 1.1
    """,
)
@click.argument("before", metavar="BEFORE", type=_RUN)
@click.argument("after", metavar="AFTER", type=_RUN)
@click.option(
    "--threshold",
    type=click.FloatRange(min=1, min_open=True),
    default=1.25,
    show_default=True,
    metavar="RATIO",
    help="From this ratio on a time or a size has changed.",
)
@_all
def compare(before: str, after: str, *, threshold: float, everything: bool) -> None:
    """Show what got slower, larger, dead or not finite from BEFORE to AFTER, the worst first.

    Times are those of a call, without calls inside. What is less than a hundredth of the model's
    is left out; so are norms that neither doubled nor halved, since they wander in training.
    """
    from hookline.record.runs import load
    from hookline.report.difference import print_difference
    from hookline.report.terminal import LINES

    limit = None if everything else LINES
    with told():
        first, second = (load(path, course=False) for path in (before, after))
        print_difference(first, second, threshold, limit=limit)
